"""confluent-kafka produces: every kind of message and codec, every acks, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compat import confluent
from tests.compat.confluent import CODECS, TIME_MS, create, outcome, producer, read, send, shown, values
from tests.compat.sides import Outcome, Side, Sides

KINDS: list[dict[str, Any]] = [
    {"value": value, "key": key, "headers": headers, "timestamp": TIME_MS + number}
    for number, (value, key, headers) in enumerate(
        [
            (b"plain", None, []),
            (None, b"tombstone", []),
            (b"", b"", []),
            (b"\x00\xff", b"\x00", [("a", b"1"), ("a", b"2"), ("none", None), ("empty", b"")]),
            ("wert-值".encode(), "schlüssel".encode(), [("ünï", "🚀".encode())]),
            (b"v" * 3000, b"k" * 300, [(f"h{n}", b"x" * n) for n in range(20)]),
        ]
    )
]


@pytest.mark.parametrize("codec", CODECS)
def test_every_kind_of_message_is_read_back_as_it_was_sent(sides: Sides, codec: str) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        sent = send(producer(side, enable_idempotence=True, compression_type=codec), topic, KINDS)
        return {"sent": sent, "read": [shown(message) for message in read(side, topic)]}

    told = sides.alike(script)
    assert [each["offset"] for each in told["sent"]] == list(range(len(KINDS)))
    assert [each["time"] for each in told["read"]] == [[1, kind["timestamp"]] for kind in KINDS]
    assert [each["value"] for each in told["read"]][:3] == ["plain", None, ""]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_kind_of_acknowledgement(sides: Sides, acks: Any) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 2)
        source = producer(side, acks=acks)
        sent = [send(source, topic, [b"%d" % n for n in range(50)], partition=number) for number in range(2)]
        found = confluent.until_count(side, topic, 100)
        return {"sent": sent, "read": [[message.partition(), *values([message])] for message in found]}

    told = sides.alike(script)
    assert told["read"] == [[number, str(n)] for number in range(2) for n in range(50)]


def test_a_producer_that_is_not_idempotent_keeps_order_with_one_request_in_flight(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        source = producer(side, enable_idempotence=False, max_in_flight=1, linger_ms=0, batch_num_messages=1)
        sent = send(source, topic, [b"%d" % n for n in range(100)])
        return {"sent": sent, "read": values(read(side, topic))}

    assert sides.alike(script)["read"] == [str(n) for n in range(100)]


def test_what_is_refused_is_named(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        small = create(side, "small", config={"max.message.bytes": "2000"})
        stamped = create(side, "stamped", config={"message.timestamp.after.max.ms": "1000"})
        source = producer(side, message_timeout_ms=10000)
        return {
            "too large": send(source, small, [b"x" * 3000]),
            "fits": send(source, small, [b"x" * 1000]),
            "future": send(source, stamped, [{"value": b"x", "timestamp": 4_000_000_000_000}]),
            "no such partition": outcome(lambda: send(source, small, [b"x"], partition=7)),
        }

    told = sides.alike(script)
    assert told["too large"] == [{"error": "MSG_SIZE_TOO_LARGE"}]
    assert told["fits"] == [{"partition": 0, "offset": 0}]


def test_a_topic_is_made_by_the_first_message_to_it(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = side.name("new")
        sent = send(producer(side), topic, [b"first"])
        return {"sent": sent, "read": values(read(side, topic))}

    assert sides.alike(script) == {"sent": [{"partition": 0, "offset": 0}], "read": ["first"]}


def test_topics_with_log_append_time_have_the_brokers_time(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", config={"message.timestamp.type": "LogAppendTime"})
        send(producer(side, linger_ms=100), topic, KINDS)
        found = [shown(message)["time"] for message in read(side, topic)]
        return {"kinds": [kind for kind, _ in found], "old": [time_ms < TIME_MS + 1_000_000 for _, time_ms in found]}

    told = sides.alike(script)
    assert (told["kinds"], told["old"]) == ([2] * len(KINDS), [False] * len(KINDS))


def test_partitions_by_key_and_at_random_hold_everything(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 5)
        keyed = [{"value": b"%d" % n, "key": b"key-%d" % (n % 7)} for n in range(200)]
        send(producer(side, partitioner="murmur2_random"), topic, keyed)
        send(producer(side, sticky_partitioning_linger_ms=0), topic, [b"none"] * 50)
        found = read(side, topic, 5)
        return {
            "keyed": [[each.partition(), *values([each])] for each in found if each.key() is not None],
            "without a key": sum(each.key() is None for each in found),
        }

    told = sides.alike(script)
    assert (len(told["keyed"]), told["without a key"]) == (200, 50)
