"""A group's filter as a setting: how it is set, taken back and told."""

from __future__ import annotations

import pytest

from penstock.wire.kafka.requests.filters import CONFIG, GROUP_RESOURCE
from penstock.wire.kafka.versions import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from penstock.wire.property_filter import PropertyCondition
from penstock.wire.protocol import GroupFilter, ReadFilter, SetFilter
from tests.wire.kafka.talk import kio_bytes, response, schema_error, schema_time
from tests.wire.kafka.test_requests import heard, said


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(("text", "operation", "value"), [("region = eu", 0, "property(region = eu)"), (None, 1, None)])
def test_a_filter_is_set_or_taken_back(version: int, text: str | None, operation: int, value: str | None) -> None:
    told = said(INCREMENTAL_ALTER_CONFIGS, version, SetFilter("billing", text))
    (resource,) = told.resources
    assert (resource.resource_type, resource.resource_name) == (GROUP_RESOURCE, "billing")
    assert [(one.name, one.config_operation, one.value) for one in resource.configs] == [(CONFIG, operation, value)]
    assert not told.validate_only


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", None),
        (None, None),
        ("property(region = eu)", "region = eu"),
        ("property(region in us,eu)", "region in eu, us"),
        ('property(region = "a)")', 'region = "a)"'),
        ("property(a in 1), mine(x)", "property(a in 1), mine(x)"),
        ("property(a = 1), property(b = 2)", "property(a = 1), property(b = 2)"),
        ("mine", "mine"),
        ("mine(a = 1)", "mine(a = 1)"),
        ("none", "none"),
    ],
)
def test_a_property_filter_is_told_bare_and_others_as_they_are(value: str | None, text: str | None) -> None:
    setting = response(
        *(DESCRIBE_CONFIGS, 2, "DescribeConfigsResourceResult"),
        name=CONFIG,
        value=value,
        read_only=False,
        is_sensitive=False,
        synonyms=(),
    )
    result = response(
        *(DESCRIBE_CONFIGS, 2, "DescribeConfigsResult"),
        error_message=None,
        resource_type=GROUP_RESOURCE,
        resource_name="g",
        configs=(setting,),
        error_code=schema_error(0),
    )
    body = kio_bytes(response(DESCRIBE_CONFIGS, 2, results=(result,), throttle_time=schema_time(0)))
    assert heard(DESCRIBE_CONFIGS, 2, ReadFilter("g"), body) == GroupFilter(text)


@pytest.mark.parametrize("value", ["a)", "(", "f(x)", 'say "(" now', "back\\slash)"])
def test_values_with_parentheses_are_written_in_quotes(value: str) -> None:
    text = str(PropertyCondition.parse("city = '" + value.replace("\\", "\\\\") + "'"))
    assert text.startswith('city = "')
    assert PropertyCondition.parse(text).matches({"city": value})
