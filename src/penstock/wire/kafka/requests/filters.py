"""What brokers filter for a group: a setting of the group's, which Penstock's broker has and Kafka's own do not.

To Kafka's tools it is the config `penstock.entry.filters` of a resource of type GROUP. Its value names filters, of
which `property(...)` is the one that is meant here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.errors import ConfigError, DecodeError, PenstockError
from penstock.wire.kafka import schema
from penstock.wire.kafka.codes import error_of
from penstock.wire.kafka.requests.exchange import control, elements, only
from penstock.wire.kafka.versions import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from penstock.wire.kafka.wishes import FILTER_FEATURE
from penstock.wire.property_filter import PropertyCondition
from penstock.wire.protocol import Done, GroupFilter, ReadFilter, SetFilter

GROUP_RESOURCE = 32
SET, DELETE = 0, 1
CONFIG = "penstock.entry.filters"
PROPERTY_FILTER = "property({})"


def say_set(request: SetFilter, version: int) -> Any:
    """One setting of one group, set or taken back."""
    config = schema.entity(
        INCREMENTAL_ALTER_CONFIGS,
        version,
        "AlterableConfig",
        name=CONFIG,
        config_operation=DELETE if request.filter is None else SET,
        value=None if request.filter is None else PROPERTY_FILTER.format(request.filter),
    )
    resource = schema.entity(
        INCREMENTAL_ALTER_CONFIGS,
        version,
        "AlterConfigsResource",
        resource_type=GROUP_RESOURCE,
        resource_name=request.group,
        configs=(config,),
    )
    return schema.entity(
        INCREMENTAL_ALTER_CONFIGS,
        version,
        "IncrementalAlterConfigsRequest",
        resources=(resource,),
        validate_only=False,
    )


def hear_set(request: SetFilter, answer: Any) -> Done | PenstockError:
    """Done, or why not."""
    return _error(request.group, only(answer.responses, "responses")) or Done()


def say_read(request: ReadFilter, version: int) -> Any:
    """One setting of one group."""
    resource = schema.entity(
        DESCRIBE_CONFIGS,
        version,
        "DescribeConfigsResource",
        resource_type=GROUP_RESOURCE,
        resource_name=request.group,
        configuration_keys=(CONFIG,),
    )
    return schema.entity(DESCRIBE_CONFIGS, version, "DescribeConfigsRequest", resources=(resource,))


def hear_read(request: ReadFilter, answer: Any) -> GroupFilter | PenstockError:
    """The setting; a property filter and nothing else is told without the name of the filter around it."""
    result = only(answer.results, "results")
    error = _error(request.group, result)
    if error is not None:
        return error
    told = next((row.value for row in elements(result.configs, "settings") if row.name == CONFIG), None)
    return GroupFilter(_bare(told) if told else None)


def _bare(told: str) -> str:
    before, _, behind = PROPERTY_FILTER.partition("{}")
    inner = told.removeprefix(before).removesuffix(behind)
    try:
        condition = str(PropertyCondition.parse(inner))
    except ConfigError:
        return told
    is_one = len(told) == len(before) + len(inner) + len(behind) and (condition == inner or not set(inner) & set("()"))
    return condition if is_one else told


def _error(group: str, result: Any) -> PenstockError | None:
    if result.resource_name != group:
        raise DecodeError(0, "group", group, result.resource_name)
    return error_of(result.error_code, f"group {group}", result.error_message)


SET_FILTER = replace(control(INCREMENTAL_ALTER_CONFIGS, say_set, hear_set), needs=FILTER_FEATURE)
READ_FILTER = replace(control(DESCRIBE_CONFIGS, say_read, hear_read), needs=FILTER_FEATURE)
