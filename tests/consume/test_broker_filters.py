"""Filters that the broker applies: what readers are not even sent, and what is set for all who read from a cursor."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

import penstock
from penstock.broker.embedded import EmbeddedBroker
from penstock.broker.filters import FilterContext, FilteredEntry, Verdict
from penstock.errors import ConfigError
from penstock.wire.property_filter import PropertyCondition
from tests.consume.faces import LIMIT_S, Face, face, new_id

__all__ = ["face"]

REGIONS = ["eu", *["us"] * 9] * 4
"""Of one entry each, of ten messages."""
MESSAGES = 10
SAME = penstock.BatchPolicy(same_properties={"region": ["us", "eu"]})


class AcceptAll:
    """A filter of somebody's own."""

    def filter_entry(self, entry: FilteredEntry, context: FilterContext) -> Verdict:
        return Verdict.ACCEPT


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with penstock.embedded(filters={"mine": AcceptAll()}) as made:
        yield made


def filled(broker: EmbeddedBroker, regions: list[str] = REGIONS) -> str:
    """A topic with an entry for each of these."""
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with penstock.connect(broker.url, client_id=new_id()) as client:
        client.create_topic(topic, 1)
        with client.producer(topic, batch=SAME) as producer:
            for number, region in enumerate(regions):
                for _ in range(MESSAGES):
                    producer.send(b"%d" % number, properties={"region": region})
                producer.flush()
    return topic


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    """Of which entries these messages are."""
    return sorted({int(value) for batch in batches for value in batch.column("value").to_pylist()})


def of(*wanted: str, regions: list[str] = REGIONS) -> list[int]:
    return [number for number, region in enumerate(regions) if region in wanted]


def read(face: Face, client: Any, topic: str, *where: Any, **how: Any) -> tuple[list[int], Any]:
    """Which entries a reader gets up to the end, and the reader."""
    reader = client.reader(topic, *where, **{"end": "latest", **how})
    return numbers(face.items(reader)), reader


# A reader's own filter


def test_what_a_filter_rejects_is_not_even_sent(face: Face, broker: EmbeddedBroker) -> None:
    topic = filled(broker)
    client = face.connect(broker.url)
    everything, plain = read(face, client, topic)
    found, reader = read(face, client, topic, filter="region = eu")
    assert everything == list(range(len(REGIONS)))
    assert found == of("eu")
    stats = reader.stats()
    assert (stats.entries_opened, stats.entries_filtered) == (4, 0)
    assert stats.entries_empty <= 1, "what tells that the rest can be passed over"
    assert stats.bytes < plain.stats().bytes / 5
    assert stats.skipped == len(of("us")) * MESSAGES
    assert plain.stats().skipped == 0
    assert reader.positions() == {0: len(REGIONS) * MESSAGES}
    told = broker.stats(topic)
    assert (told["filters"]["accepted"], told["filters"]["rejected"]) == (4, 36)
    assert told["delivered"]["entries"] == 40 + 4


def test_entries_come_unopened_and_chosen(face: Face, broker: EmbeddedBroker) -> None:
    topic = filled(broker)
    reader = face.connect(broker.url).reader(topic, end="latest", unit="batch", filter="region = eu")
    assert [entry.begin for entry in face.items(reader)] == [number * MESSAGES for number in of("eu")]
    assert reader.stats().entries_filtered == 0


def test_a_reader_that_is_given_nothing_comes_to_its_end(face: Face, broker: EmbeddedBroker) -> None:
    topic = filled(broker)
    found, reader = read(face, face.connect(broker.url), topic, filter="region = nl")
    assert found == []
    assert reader.positions() == {0: len(REGIONS) * MESSAGES}
    assert reader.stats().skipped == len(REGIONS) * MESSAGES


@pytest.mark.parametrize("end", [13, 105, 110])
def test_a_range_that_ends_among_what_is_not_sent_ends_there(face: Face, broker: EmbeddedBroker, end: int) -> None:
    topic = filled(broker)
    found, reader = read(face, face.connect(broker.url), topic, {0: 3}, end={0: end}, filter="region = eu")
    assert found == [number for number in of("eu") if number * MESSAGES < end]
    stats = reader.stats()
    assert stats.messages_read + stats.skipped == end - 3
    assert reader.positions() == {0: end}


def test_who_follows_gets_what_matches_and_goes_on_behind_the_rest(face: Face, broker: EmbeddedBroker) -> None:
    topic = filled(broker)
    client = face.connect(broker.url)
    reader = client.reader(topic, start="latest", filter="region = eu")
    face.run(reader.ready(LIMIT_S))
    with penstock.connect(broker.url, client_id=new_id()) as other, other.producer(topic, batch=SAME) as producer:
        for region in ("us", "us", "eu", "us"):
            producer.send(region.encode(), properties={"region": region})
            producer.flush()
    batch = face.run(reader.read(LIMIT_S))
    assert batch.column("value").to_pylist() == [b"eu"]
    assert reader.stats().messages_filtered == 0


def test_batches_that_claim_nothing_are_sent_and_judged_message_by_message(face: Face, broker: EmbeddedBroker) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with penstock.connect(broker.url, client_id=new_id()) as client, client.producer(topic) as producer:
        for number in range(100):
            producer.send(b"%d" % number, properties={"region": "eu" if number % 4 == 0 else "us"})
    found, reader = read(face, face.connect(broker.url), topic, filter="region = eu")
    assert found == list(range(0, 100, 4))
    assert (reader.stats().messages_sifted, reader.stats().skipped) == (75, 0)
    assert broker.stats(topic)["filters"]["accepted"] == 0, "nobody has to look at entries that claim nothing"


def test_what_was_aborted_stays_dropped_though_the_first_of_it_is_not_sent(face: Face, broker: EmbeddedBroker) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with penstock.connect(broker.url, client_id=new_id()) as client:
        client.create_topic(topic, 1)
        producer = client.producer(topic, batch=SAME, transactional_id=f"x-{topic}")
        for number, commits in enumerate([False, True]):
            with producer.transaction() as transaction:
                for region in ("us", "eu", "us"):
                    producer.send(b"%d" % number, properties={"region": region})
                producer.flush()
                if not commits:
                    transaction.abort()
    found, reader = read(face, face.connect(broker.url), topic, filter="region = eu")
    assert found == [1]
    stats = reader.stats()
    assert (stats.entries_aborted, stats.entries_control, stats.entries_filtered) == (1, 2, 0)


# A cursor's filter


def test_what_is_set_for_a_cursor_holds_for_all_who_read_from_it(face: Face, broker: EmbeddedBroker) -> None:
    topic = filled(broker)
    client = face.connect(broker.url)
    cursor, other = client.cursor(topic, f"{topic}-mine"), client.cursor(topic, f"{topic}-other")
    assert face.run(cursor.filter()) is None
    face.run(cursor.set_filter("region in eu"))
    assert face.run(cursor.filter()) == "region = eu"
    assert face.run(other.filter()) is None
    found, reader = read(face, client, topic, cursor)
    assert found == of("eu")
    assert reader.stats().entries_opened == 4
    face.run(cursor.commit(reader.marks()))
    assert face.run(cursor.backlog()) == {0: 0}
    assert read(face, client, topic, other)[0] == list(range(len(REGIONS)))
    assert read(face, client, topic)[0] == list(range(len(REGIONS)))
    face.run(cursor.reset("earliest"))
    face.run(cursor.set_filter(None))
    assert face.run(cursor.filter()) is None
    assert read(face, client, topic, cursor)[0] == list(range(len(REGIONS)))


def test_a_readers_filter_judges_after_its_cursors(face: Face, broker: EmbeddedBroker) -> None:
    regions = ["eu", "us", "nl"] * 3
    topic = filled(broker, regions)
    client = face.connect(broker.url)
    cursor = client.cursor(topic, topic)
    face.run(cursor.set_filter(PropertyCondition.parse("region is present")))
    found, reader = read(face, client, topic, cursor, filter="region != us")
    assert found == of("eu", regions=regions), "nl is not listed by the policy, and counts as absent"
    assert reader.stats().entries_opened == 3
    assert broker.stats(topic)["filters"]["rejected"] == 6


def test_official_consumers_of_the_group_get_what_matches(face: Face, broker: EmbeddedBroker) -> None:
    topic = filled(broker)
    face.run(face.connect(broker.url).cursor(topic, topic).set_filter("region = eu"))
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": topic,
            "client.id": new_id(),
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    found = []
    try:
        consumer.subscribe([topic])
        while (message := consumer.poll(LIMIT_S)) is not None and message.error() is None:
            found.append(int(message.value() or b""))
        assert message is not None
        assert message.offset() == len(REGIONS) * MESSAGES
    finally:
        consumer.close()
    assert found == [number for number in of("eu") for _ in range(MESSAGES)]
    assert broker.stats(topic)["filters"]["rejected"] == 36


@pytest.mark.parametrize("text", ['city = "New (York)"', 'city in "a)b", "say \\"hi\\""; region is absent'])
def test_any_filter_can_be_set(face: Face, broker: EmbeddedBroker, text: str) -> None:
    cursor = face.connect(broker.url).cursor("orders", f"g-{uuid.uuid4().hex[:8]}")
    face.run(cursor.set_filter(text))
    assert face.run(cursor.filter()) == text


def test_filters_of_other_kinds_are_told_as_the_broker_says_them(face: Face, broker: EmbeddedBroker) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    broker.change(group=group, entry_filters="mine, property(region = eu)")
    assert face.run(face.connect(broker.url).cursor("orders", group).filter()) == "mine, property(region = eu)"


@pytest.mark.parametrize("wrong", ["region ==", "", 5])
def test_what_is_no_filter_is_refused_before_anybody_is_asked(face: Face, broker: EmbeddedBroker, wrong: Any) -> None:
    cursor = face.connect(broker.url).cursor("orders", "billing")
    with pytest.raises(ConfigError, match="filter"):
        face.run(cursor.set_filter(wrong))
