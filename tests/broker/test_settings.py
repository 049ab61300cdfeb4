"""Settings of brokers and topics: what they take, what they refuse, and which of several holds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from penstock.broker.refusals import Refusal, Refused
from penstock.broker.settings import (
    BROKER_TABLE,
    TOPIC_TABLE,
    BrokerSettings,
    TopicSettings,
    read_topic_settings,
    resolve,
    table,
    topic_setting,
)
from penstock.errors import ConfigError, UnknownOptionError

HERE = Path("data")


def test_every_row_has_a_field_and_takes_its_default() -> None:
    assert [row.name for row in TOPIC_TABLE] == [field.name for field in dataclasses.fields(TopicSettings)]
    fields = [field.name for field in dataclasses.fields(BrokerSettings)]
    assert ["folder", *(row.name for row in BROKER_TABLE), "topics"] == fields
    for row in (*TOPIC_TABLE, *BROKER_TABLE):
        assert row.default is None or row.read(row.default) == row.default
        assert row.default is not None or row.open


def test_defaults_are_kafkas_where_clients_notice() -> None:
    settings = TopicSettings()
    assert settings.entry_bytes_max == 1_048_588
    assert settings.retention_ms == 604_800_000
    assert settings.retention_bytes is None
    assert settings.segment_bytes == 1 << 30
    assert settings.time_type == "sender"
    assert settings.time_after_max_ms == 3_600_000
    assert settings.time_before_max_ms is None
    assert BrokerSettings(HERE).producer_expiration_ms == 86_400_000
    assert BrokerSettings(HERE).transaction_timeout_max_ms == 900_000
    assert BrokerSettings(HERE).fsync == "group"


def test_values_are_read_from_text_too() -> None:
    given = {"retention_ms": "60000", "segment_bytes": "1 MiB", "time_type": "LOG", "keep_unread": "yes"}
    read = {"retention_ms": 60_000, "segment_bytes": 1 << 20, "time_type": "log", "keep_unread": True}
    assert read_topic_settings(given) == read


def test_an_open_setting_takes_none() -> None:
    assert read_topic_settings({"retention_ms": None, "entry_filters": None}) == {
        "retention_ms": None,
        "entry_filters": None,
    }


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("retention_ms", -2, "retention_ms takes"),
        ("retention_ms", 1.5, "retention_ms takes"),
        ("retention_ms", True, "retention_ms takes"),
        ("segment_bytes", None, "segment_bytes takes"),
        ("segment_bytes", 10, "segment_bytes takes bytes from 1 KiB to 2 GiB; not 10"),
        ("entry_bytes_max", 1 << 31, "entry_bytes_max takes"),
        ("time_type", "none", "time_type takes sender or log; not 'none'"),
        ("cleanup", "compact", "cleanup takes delete only: logs are not compacted; not 'compact'"),
        ("cleanup", "compact,delete", "cleanup takes delete only"),
        ("keep_unread", 1, "keep_unread takes true or false"),
        ("producers_max", 0, "producers_max takes"),
        ("retention", 1, "there is no topic setting 'retention'; retention_ms?"),
        ("qqq", 1, "there is no topic setting 'qqq'"),
    ],
)
def test_what_is_not_taken_is_refused(name: str, value: object, fault: str) -> None:
    with pytest.raises(Refused) as refused:
        read_topic_settings({name: value})
    assert refused.value.reason is Refusal.BAD_SETTING
    assert fault in refused.value.text
    with pytest.raises(ConfigError):
        BrokerSettings(HERE, topics={name: value})


def test_the_nearest_wins() -> None:
    topic: dict[str, object] = {"retention_ms": 1}
    namespace: dict[str, object] = {"retention_ms": 2, "segment_ms": 2}
    broker: dict[str, object] = {"retention_ms": 3, "segment_ms": 3, "producers_max": 3}
    found = resolve(topic, namespace, broker)
    assert (found.retention_ms, found.segment_ms, found.producers_max) == (1, 2, 3)
    assert found == resolve({"unknown in this version": 1}, topic, namespace, broker)
    assert resolve() == TopicSettings()
    assert resolve({"retention_ms": None}, broker).retention_ms is None


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"fsync": "never"}, "fsync takes always, group or system"),
        ({"node_id": -1}, "node_id takes"),
        ({"partitions_default": 0}, "partitions_default takes"),
        ({"partitions_default": 9, "partitions_max": 8}, "partitions_default 9 is above partitions_max 8"),
        ({"cursor_ranges_max": 0}, "cursor_ranges_max takes"),
    ],
)
def test_a_broker_refuses_too(options: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        BrokerSettings(HERE, **options)  # type: ignore[arg-type]


def test_an_unknown_topic_setting_of_a_broker_names_the_nearest() -> None:
    with pytest.raises(UnknownOptionError, match=r"retention_ms\?"):
        BrokerSettings(HERE, topics={"retention_millis": 1})


def test_the_tables_print_their_documentation() -> None:
    assert "| `retention_ms` | " in table(TOPIC_TABLE)
    assert table(TOPIC_TABLE).count("\n") == len(TOPIC_TABLE) + 1
    assert "or none for no limit" in topic_setting("retention_bytes").allowed
    with pytest.raises(Refused):
        topic_setting("nothing")
