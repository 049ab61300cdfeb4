"""Kafka as a system: its batches, and the fields of a message that its records have no place for."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from penstock.errors import MessageError
from penstock.wire.entry import BatchBuffer
from penstock.wire.kafka import system
from penstock.wire.kafka.system import KEYS_PROPERTY, TAG_PROPERTY, KafkaWire
from penstock.wire.protocol import Wire

WIRE: Wire = KafkaWire()


def test_buffer_is_empty_and_has_the_limit() -> None:
    buffer: BatchBuffer = WIRE.buffer(200)
    assert (buffer.count, buffer.held, buffer.bytes_max) == (0, 0, 200)
    assert [buffer.append(bytes(80)) for _ in range(2)] == [0, -1]


@pytest.mark.parametrize("properties", [None, {}, {"a": "b"}, {"penstock.tag": "own"}])
def test_properties_of_a_message_without_such_fields_stay_the_same_object(properties: Any) -> None:
    assert WIRE.labelled(properties, None, (), None) is properties


def test_tag_and_keys_travel_among_the_properties() -> None:
    own = MappingProxyType({"a": b"1"})
    assert WIRE.labelled(own, "paid", ["order-1", "order-2"], None) == {
        "a": b"1",
        "penstock.tag": "paid",
        "penstock.keys": "order-1 order-2",
    }
    assert WIRE.labelled(None, "paid", (), None) == {TAG_PROPERTY: "paid"}
    assert WIRE.labelled({}, None, ("k",), None) == {KEYS_PROPERTY: "k"}
    assert own == {"a": b"1"}


def test_names_are_as_documented() -> None:
    assert system.__doc__ is not None
    rows = [line.split()[:2] for line in system.__doc__.splitlines() if line.startswith("    ")]
    assert rows[1:3] == [["tag", TAG_PROPERTY], ["keys", KEYS_PROPERTY]]


@pytest.mark.parametrize(
    ("tag", "keys", "deliver_at_ms", "text"),
    [
        ("", (), None, "tag: expected a text that is not empty, found ''"),
        (5, (), None, "tag: expected a text that is not empty, found 5"),
        (b"x", (), None, "tag: expected a text that is not empty, found b'x'"),
        (None, ("a", ""), None, "keys: expected texts that are not empty and have no space, found ''"),
        (None, ("a b",), None, "keys: expected texts that are not empty and have no space, found 'a b'"),
        (None, (b"a",), None, "keys: expected texts that are not empty and have no space, found b'a'"),
        (None, "ab", None, "keys: expected a list of texts, found the text 'ab'; put it into a list"),
        (None, (), 0, "deliver_at: Kafka delivers at once; leave it out, or send the message when it is due"),
    ],
)
def test_field_that_cannot_be_carried_is_refused(tag: Any, keys: Any, deliver_at_ms: int | None, text: str) -> None:
    with pytest.raises(MessageError) as caught:
        WIRE.labelled({"a": "b"}, tag, keys, deliver_at_ms)
    assert str(caught.value) == text


@pytest.mark.parametrize(("tag", "keys", "name"), [("t", (), TAG_PROPERTY), (None, ("k",), KEYS_PROPERTY)])
def test_field_and_property_of_its_name_together_are_refused(tag: str | None, keys: tuple[str, ...], name: str) -> None:
    with pytest.raises(MessageError, match=f"the property '{name}', which carries it on Kafka, is set too"):
        WIRE.labelled({name: None}, tag, keys, None)


def test_what_is_no_mapping_is_left_for_framing_to_refuse() -> None:
    odd: Any = [("a", b"1")]
    labelled = WIRE.labelled(odd, "t", ("k",), None)
    with pytest.raises(MessageError, match="properties: expected a mapping"):
        WIRE.buffer(200).append(b"", None, labelled)
