"""Two clusters that copy from each other: both end up with everything, once, and nothing goes round."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.produce.real.reading import LIMIT_S, create
from tests.replicate.pair import End, Pair, until
from tests.replicate.real.equality import DELIVERIES, bootstrap, contents

PARTITIONS = 2


def send(end: End, topic: str, first: int, count: int, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": bootstrap(end), "linger.ms": 5, "batch.num.messages": 20, **settings})
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, b"%d" % (number % 7), number % PARTITIONS)
    assert producer.flush(LIMIT_S) == 0


def values(end: End, topic: str) -> Counter[bytes | None]:
    return Counter(message.value for part in contents(end, topic).values() for message in part)


def numbered(*ranges: tuple[int, int]) -> Counter[bytes]:
    return Counter(b"%d" % number for first, count in ranges for number in range(first, first + count))


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_both_ends_hold_everything_once(kafkas: Pair, delivery: str) -> None:
    topic = create(bootstrap(kafkas.source), PARTITIONS)
    send(kafkas.source, topic, 0, 300)
    rules: dict[str, Any] = {"delivery": delivery, "repack": "never"}
    kafkas.copy_all(topic, name=f"{topic}-there", **rules)
    send(kafkas.target, topic, 1000, 300, **{"enable.idempotence": True})
    sent = [(0, 300), (1000, 300)]
    there = kafkas.copying(topic, name=f"{topic}-there", **rules)
    back = kafkas.copying(topic, name=f"{topic}-back", back=True, **rules)
    with there, back:
        for turn in range(2):
            for end, first in ((kafkas.source, 2000 + 100 * turn), (kafkas.target, 3000 + 100 * turn)):
                send(end, topic, first, 100)
                sent.append((first, 100))
            until(lambda: there.stats().total.messages_copied >= 100 * (turn + 1), there)  # noqa: B023
            until(lambda: back.stats().total.messages_copied >= 300 + 100 * (turn + 1), back)  # noqa: B023
        until(lambda: there.stats().total.messages_returned >= 500, there)
        until(lambda: back.stats().total.messages_returned >= 500, back)
        until(lambda: there.stats().delay_ms == back.stats().delay_ms == 0, back)
    again = [
        kafkas.copy_all(topic, name=f"{topic}-{way}", back=way == "back", **rules).stats().total
        for way in ("there", "back")
    ]
    assert [(total.messages_copied, total.messages_returned) for total in again] == [(0, 0), (0, 0)]
    assert values(kafkas.source, topic) == values(kafkas.target, topic) == numbered(*sent)
