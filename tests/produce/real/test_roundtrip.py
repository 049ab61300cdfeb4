"""What we send to a real Kafka is what official consumers read: contents, places, times, and who hears of an error."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from brokers.kafka import KafkaCluster
from penstock import BatchPolicy, RoundRobin
from penstock.errors import MessageError
from penstock.message import MessageId, Properties
from penstock.wire.compression import LEVELS, Codec
from penstock.wire.kafka.header import parse_header, peek
from tests.produce.real.conftest import Connect
from tests.produce.real.raw_fetch import stored_batches
from tests.produce.real.reading import (
    READERS,
    Read,
    by_partition,
    create,
    in_place,
    new_topic,
    read_all,
)
from tests.produce.test_claims import EXAMPLE, RESTRICTED

LIMIT_S = 60.0
TIME_MS = 1_700_000_000_123

KEYS = [None, b"", b"k", b"\x00\xff\xfe", "schlüssel".encode(), b"k" * 3000]
VALUES = [None, b"", b"v", bytes(range(256)), b"v" * 70_000]
PROPERTIES: list[Properties | None] = [
    None,
    {},
    {"a": "b"},
    {"none": None, "empty": "", "bytes": b"\x00\xff"},
    {"ünïcode-名": "wert-值-🚀", "": "no name"},
    {f"p{number}": "x" * number for number in range(70)},
]


def expected_headers(properties: Properties | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name, text.encode() if isinstance(text, str) else text) for name, text in (properties or {}).items())


def shown(message: Read) -> tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
    return message.value, message.key, message.headers


@pytest.mark.parametrize("reader", READERS)
def test_every_kind_of_content_arrives_as_it_was_sent(real_kafka: KafkaCluster, connect: Connect, reader: str) -> None:
    topic = create(real_kafka.bootstrap, 3)
    kinds = [(value, key, pairs) for value in VALUES for key in KEYS for pairs in PROPERTIES]
    producer = connect(real_kafka.url).producer(topic)
    receipts = [
        producer.send(value, key, pairs, event_time=TIME_MS + number, partition=number % 3)
        for number, (value, key, pairs) in enumerate(kinds)
    ]
    places = [receipt.result(LIMIT_S) for receipt in receipts]
    found = in_place(READERS[reader](real_kafka.bootstrap, topic, len(kinds)))
    assert len(found) == len(kinds)
    for number, (place, (value, key, pairs)) in enumerate(zip(places, kinds, strict=True)):
        assert place == MessageId(topic, number % 3, number // 3)
        message = found[place.partition, number // 3]
        assert shown(message) == (value, key, expected_headers(pairs))
        assert message.time_ms == TIME_MS + number


LEVELLED: list[tuple[Codec, int | None]] = [(codec, None) for codec in Codec]
LEVELLED += [(codec, level) for codec, levels in LEVELS.items() for level in (levels.min, levels.max)]


@pytest.mark.parametrize("reader", READERS)
def test_batches_of_every_codec_and_level_are_read(real_kafka: KafkaCluster, connect: Connect, reader: str) -> None:
    topic = create(real_kafka.bootstrap, len(LEVELLED))
    noise = random.Random(1)
    values = [b"text like %d " % number * 20 for number in range(2000)] + [noise.randbytes(5000) for _ in range(20)]
    with connect(real_kafka.url) as client:
        for partition, (codec, level) in enumerate(LEVELLED):
            producer = client.producer(topic, compression=codec.value, compression_level=level)
            producer.send_many(values, partition=partition).result(LIMIT_S)
    parts = by_partition(READERS[reader](real_kafka.bootstrap, topic, len(LEVELLED) * len(values)))
    assert len(parts) == len(LEVELLED)
    for partition, (codec, _) in enumerate(LEVELLED):
        assert [message.value for message in parts[partition]] == values
        stored = stored_batches(real_kafka.address(1), topic, partition)
        assert {parse_header(batch).codec for batch in stored} == {codec}


def test_without_an_event_time_a_message_has_the_time_of_sending(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap)
    with connect(real_kafka.url) as client, client.producer(topic) as producer:
        producer.ready(LIMIT_S)
        before = time.time_ns() // 1_000_000
        producer.send(b"plain")
        producer.send_many([b"many"])
        producer.send(b"slow way", tag="a")
        after = time.time_ns() // 1_000_000
        producer.send(b"dated", event_time=datetime(2024, 5, 1, 12, tzinfo=UTC))
    *now, dated = read_all(real_kafka.bootstrap, topic)
    assert [message.value for message in now] == [b"plain", b"many", b"slow way"]
    assert all(before <= message.time_ms <= after for message in now)
    assert dated.time_ms == 1_714_564_800_000


def test_times_that_go_back_and_forth_in_a_batch_are_kept(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap)
    times = [TIME_MS, TIME_MS - 86_400_000, 0, TIME_MS + 5, TIME_MS - 1, TIME_MS + 5]
    with connect(real_kafka.url) as client:
        client.producer(topic).send_many([b"v"] * len(times), event_times=times).result(LIMIT_S)
    assert [message.time_ms for message in read_all(real_kafka.bootstrap, topic)] == times
    (batch,) = stored_batches(real_kafka.address(1), topic)
    assert parse_header(batch).max_timestamp == TIME_MS + 5


def test_a_topic_with_log_append_time_shows_the_brokers_time(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, message_timestamp_type="LogAppendTime")
    before = time.time_ns() // 1_000_000
    with connect(real_kafka.url) as client:
        receipts = client.producer(topic).send_many([b"a", b"b"], event_times=[0, 1])
        assert [place.position for place in receipts.result(LIMIT_S)] == [0, 1]
    after = time.time_ns() // 1_000_000
    found = read_all(real_kafka.bootstrap, topic)
    assert [message.value for message in found] == [b"a", b"b"]
    assert all(before <= message.time_ms <= after for message in found)


def test_tag_and_keys_travel_as_headers_and_deliver_at_is_refused(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap)
    with connect(real_kafka.url) as client, client.producer(topic) as producer:
        producer.send(b"a", tag="red", keys=["order-1", "order-2"], properties={"own": "x"})
        producer.send(b"b", keys="order-3")
        producer.send(b"c", tag="blue")
        with pytest.raises(MessageError, match="deliver_at: Kafka delivers at once"):
            producer.send(b"d", deliver_at=TIME_MS)
    assert [shown(message) for message in read_all(real_kafka.bootstrap, topic)] == [
        (b"a", None, (("own", b"x"), ("penstock.tag", b"red"), ("penstock.keys", b"order-1 order-2"))),
        (b"b", None, (("penstock.keys", b"order-3"),)),
        (b"c", None, (("penstock.tag", b"blue"),)),
    ]


def test_lists_arrays_tables_and_hand_made_batches_arrive(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, 4)
    map_type = pa.map_(pa.string(), pa.binary())
    pairs = [[("all", b"of them")], [("all", b"of them")]]
    with connect(real_kafka.url) as client, client.producer(topic) as producer:
        producer.ready(LIMIT_S)
        by_list = producer.send_many(
            [b"a", None, b""],
            [b"k", None, b""],
            [{"p": "1"}, None, {"q": None}],
            [TIME_MS, TIME_MS + 1, TIME_MS + 2],
            0,
        )
        by_array = producer.send_many(
            pa.array([b"d", None]), pa.array([None, b"x"]), pa.array(pairs, map_type), [TIME_MS, TIME_MS], 1
        )
        table = pa.table(
            {
                "value": pa.array([b"e", b"f", None]),
                "key": pa.array([b"k1", None, b""]),
                "properties": pa.array([[("p", b"1")], None, [("q", None)]], map_type),
                "event_time": pa.array([TIME_MS, TIME_MS + 1, TIME_MS + 2]),
            }
        )
        by_table = producer.send_table(table, 2)
        batch = producer.batch()
        batch.append(b"g", b"k", {"p": "1"}, TIME_MS)
        batch.extend([b"h", None], None, None, TIME_MS)
        by_hand = producer.send_batch(batch, 3)
        ids = [place for receipt in (by_list, by_array, by_table, by_hand) for place in receipt.result(LIMIT_S)]
    assert ids == [MessageId(topic, at, number) for at, count in enumerate([3, 2, 3, 3]) for number in range(count)]
    parts = by_partition(read_all(real_kafka.bootstrap, topic))
    assert [[shown(message) for message in parts[number]] for number in range(4)] == [
        [(b"a", b"k", (("p", b"1"),)), (None, None, ()), (b"", b"", (("q", None),))],
        [(b"d", None, (("all", b"of them"),)), (None, b"x", (("all", b"of them"),))],
        [(b"e", b"k1", (("p", b"1"),)), (b"f", None, ()), (None, b"", (("q", None),))],
        [(b"g", b"k", (("p", b"1"),)), (b"h", None, ()), (None, None, ())],
    ]
    assert [message.time_ms - TIME_MS for message in parts[0] + parts[2]] == [0, 1, 2, 0, 1, 2]


def test_one_mapping_of_properties_holds_for_all_of_an_array(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap)
    with connect(real_kafka.url) as client, client.producer(topic) as producer:
        producer.send_many(pa.array([b"a", b"b"]), properties={"all": "of them"}).result(LIMIT_S)
    found = read_all(real_kafka.bootstrap, topic)
    assert [message.headers for message in found] == [(("all", b"of them"),)] * 2


def test_the_example_of_eight_messages_is_stored_as_five_batches(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap)
    policy = BatchPolicy(same_properties=RESTRICTED, delay_ms=1000)
    with connect(real_kafka.url) as client, client.producer(topic, batch=policy) as producer:
        producer.ready(LIMIT_S)
        for number, properties in enumerate(EXAMPLE):
            producer.send(b"%d" % number, properties=properties)
        producer.flush(LIMIT_S)
        assert producer.stats().total.seal_reasons == {"properties": 4, "flush": 1}
    batches = [peek(batch) for batch in stored_batches(real_kafka.address(1), topic)]
    assert [(dict(batch.claim.same), batch.count) for batch in batches] == [
        ({"region": "eu", "version": None}, 2),
        ({"region": "eu", "version": "1"}, 2),
        ({"region": "us", "version": "1"}, 1),
        ({"region": "us", "version": "2"}, 1),
        ({"region": "us", "version": None}, 2),
    ]
    found = read_all(real_kafka.bootstrap, topic)
    assert [message.value for message in found] == [b"%d" % number for number in range(8)]
    own = [tuple(pair for pair in message.headers if pair[0] != "penstock.claim") for message in found]
    assert own == [expected_headers(properties) for properties in EXAMPLE]


def test_by_group_each_combination_has_its_own_batch(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap)
    policy = BatchPolicy(same_properties={"region": ["eu", "us"]}, delay_ms=1000, order="group")
    with connect(real_kafka.url) as client, client.producer(topic, batch=policy) as producer:
        producer.ready(LIMIT_S)
        for number in range(100):
            producer.send(b"%d" % number, properties={"region": ("eu", "us")[number % 2]})
    batches = [peek(batch) for batch in stored_batches(real_kafka.address(1), topic)]
    assert [(dict(batch.claim.same), batch.count) for batch in batches] == [
        ({"region": "eu"}, 50),
        ({"region": "us"}, 50),
    ]
    values = [int(message.value or b"") for message in read_all(real_kafka.bootstrap, topic)]
    assert values == [*range(0, 100, 2), *range(1, 100, 2)]


def test_listed_values_stand_with_the_batch(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap)
    policy = BatchPolicy(listed_properties=("city",), delay_ms=1000)
    with connect(real_kafka.url) as client, client.producer(topic, batch=policy) as producer:
        for city in ("oslo", "rome", "oslo", None):
            producer.send(b"v", properties={"city": city} if city else None)
    (batch,) = stored_batches(real_kafka.address(1), topic)
    assert peek(batch).claim.values("city") == frozenset({"oslo", "rome", None})


@pytest.mark.parametrize(
    "options",
    [
        {"acks": "leader", "idempotence": False},
        {"acks": "none", "idempotence": False},
        {"acks": "all", "idempotence": False},
        {"acks": "all", "idempotence": True},
    ],
    ids=lambda options: f"{options['acks']}-{options['idempotence']}",
)
def test_every_kind_of_acknowledgement_stores_all(
    real_kafka: KafkaCluster, connect: Connect, options: dict[str, Any]
) -> None:
    topic = create(real_kafka.bootstrap, 4)
    policy = BatchPolicy(delay_ms=1, count_max=50)
    with connect(real_kafka.url) as client, client.producer(topic, batch=policy, **options) as producer:
        receipts = [producer.send(b"%d" % number, partition=number % 4) for number in range(4000)]
        producer.flush(LIMIT_S)
        positions = [receipt.result(0).position for receipt in receipts]
    expected = [None] * 4000 if options["acks"] == "none" else [number // 4 for number in range(4000)]
    assert positions == expected
    parts = by_partition(read_all(real_kafka.bootstrap, topic, 4000))
    assert [[message.value for message in parts[part]] for part in range(4)] == [
        [b"%d" % number for number in range(part, 4000, 4)] for part in range(4)
    ]
    producers = {peek(batch).producer for batch in stored_batches(real_kafka.address(1), topic)}
    assert (producers == {None}) is not options["idempotence"]


def test_wait_for_store_is_said_message_by_message(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap)
    with connect(real_kafka.url) as client, client.producer(topic, acks="leader", idempotence=False) as producer:
        waits = [None, True, False, True, None, False]
        receipts = [producer.send(b"%d" % number, wait_for_store=wait) for number, wait in enumerate(waits)]
        assert {receipt.result(LIMIT_S).position for receipt in receipts} == set(range(6))
    assert sorted(message.value or b"" for message in read_all(real_kafka.bootstrap, topic)) == [
        b"%d" % number for number in range(6)
    ]


def test_round_robin_fills_all_partitions_evenly(real_kafka: KafkaCluster, connect: Connect) -> None:
    topic = create(real_kafka.bootstrap, 5)
    policy = BatchPolicy(count_max=10, delay_ms=1000)
    with connect(real_kafka.url) as client, client.producer(topic, batch=policy, router=RoundRobin()) as producer:
        producer.ready(LIMIT_S)
        for number in range(500):
            producer.send(b"%d" % number)
    parts = by_partition(read_all(real_kafka.bootstrap, topic))
    assert {part: len(messages) for part, messages in parts.items()} == dict.fromkeys(range(5), 100)


def test_the_very_first_messages_go_to_a_topic_that_is_made_for_them(
    real_kafka: KafkaCluster, connect: Connect
) -> None:
    topic = new_topic()
    with connect(real_kafka.url) as client:
        producer = client.producer(topic)
        receipts = [producer.send(b"%d" % number, key=b"%d" % (number % 7)) for number in range(1000)]
        assert [receipt.result(LIMIT_S).position for receipt in receipts] == list(range(1000))
    assert [message.value for message in read_all(real_kafka.bootstrap, topic)] == [b"%d" % n for n in range(1000)]
