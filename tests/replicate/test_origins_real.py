"""Notes found where clients wrote them, beside batches that are known by them: embedded, and on real Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import penstock
from brokers.kafka import KafkaCluster
from penstock.consume.opening import Entry
from penstock.replicate.note import SourceNote, group_of, transactional_id
from penstock.replicate.origins import Descent, Destination, OriginFinder, Origins, Whence
from penstock.wire.compression import Codec
from penstock.wire.entry import EntryFlag
from penstock.wire.protocol import FindHome, Mark, Partition
from tests.consume.real.conftest import cleaning_kafka as cleaning_kafka
from tests.produce.real.conftest import Connect
from tests.produce.real.conftest import connect as connect
from tests.produce.real.reading import LIMIT_S, new_topic

NOTE = SourceNote("far away", "orders", None, 0)


@pytest.fixture(params=["embedded", "kafka"])
def client(request: pytest.FixtureRequest, connect: Connect) -> Iterator[penstock.Client]:
    """A client of a cluster that copies come to."""
    if request.param == "embedded":
        with penstock.embedded() as broker:
            yield connect(broker.url)
    else:
        kafka: KafkaCluster = request.getfixturevalue("real_kafka")
        yield connect(kafka.url)


def find(client: penstock.Client, *partitions: Partition) -> Origins:
    core = client._core
    tools = core._cursors
    finder = OriginFinder(tools.cluster, tools.clock, core.engine.backoff, tools.homes, "mine")
    return tools.errands.run(tools.cluster, finder.find(partitions)).result(LIMIT_S)


def entries(client: penstock.Client, topic: str, partition: int) -> list[Entry]:
    with client.reader(topic, end="latest", partitions=[partition], unit="batch") as reader:
        return [item for item in reader if isinstance(item, Entry)]


def copy_into(client: penstock.Client, partition: Partition, value: bytes) -> SourceNote:
    """What a copier does within a transaction: a batch, and a position with a note that names the batch's producer."""
    producer = client.producer(partition.topic, transactional_id=transactional_id("there", *partition))
    producer.ready(LIMIT_S)
    identity = producer._core.outlet.identity
    assert identity is not None
    note = NOTE.written_by(identity.producer, 0)
    with producer.transaction() as transaction:
        producer.send(value, partition=partition.number)
        transaction.send_offsets({partition: Mark(1, note.encode())}, group_of("there"))
    return note


def test_copies_are_told_from_what_was_produced_here(client: penstock.Client) -> None:
    topic = new_topic()
    client.create_topic(topic, 2)
    first, second = Partition(topic, 0), Partition(topic, 1)
    client.producer(topic).send(b"mine", partition=0).result(LIMIT_S)
    note = copy_into(client, first, b"yours")
    client.cursor(topic, group_of("elsewhere")).commit({1: Mark(7, NOTE.written_by(10**9, 0).encode())})
    client.cursor(topic, "payments").commit({0: Mark(5, NOTE.written_by(10**9, 0).encode())})

    origins = find(client, first, second)
    assert [(feeder.pipeline, feeder.note) for feeder in origins.feeders[first]] == [("there", note)]
    assert [feeder.pipeline for feeder in origins.feeders[second]] == ["elsewhere"]
    assert origins.cluster == client.metadata([topic]).cluster_id

    descent = Descent("mine", first, Destination("far away", "orders"))
    descent.learn(origins, (), 100)
    judged = []
    for entry in entries(client, topic, 0):
        assert isinstance(entry.header.producer, int)
        assert isinstance(entry.header.first, int)
        judged.append(descent.judge(entry.header.producer, entry.header.first))
    assert judged == [Whence.ELSEWHERE, Whence.TARGET]


@pytest.mark.parametrize(
    "settings",
    [
        {"compression.type": "gzip"},
        {"message.timestamp.type": "LogAppendTime"},
        {"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.0"},
    ],
    ids=["another codec", "log-append time", "compaction"],
)
def test_a_batch_that_kafka_has_written_anew_keeps_its_producer(
    cleaning_kafka: KafkaCluster, connect: Connect, settings: dict[str, str]
) -> None:
    client, topic = connect(cleaning_kafka.url), new_topic()
    client.create_topic(topic, 1, settings=settings)
    producer = client.producer(topic, compression="lz4")
    for number in range(3):
        producer.send_many([b"x"] * 100, [b"%d" % number] + [b"same"] * 99).result(LIMIT_S)
    if "cleanup.policy" in settings:
        wait_until_compacted(client, producer)
    assert producer._core.outlet.identity is not None
    headers = [entry.header for entry in entries(client, topic, 0)]
    anew = EntryFlag.LOG_TIME | EntryFlag.THINNED
    assert any(header.codec is not Codec.LZ4 or header.flags & anew for header in headers)
    assert {header.producer for header in headers} == {producer._core.outlet.identity.producer}


def wait_until_compacted(client: penstock.Client, producer: penstock.Producer) -> None:
    """Until most messages are gone; the newest segment is never compacted, and so another is begun."""
    over = time.monotonic() + LIMIT_S
    while sum(entry.header.count for entry in entries(client, producer.topic, 0)) > 200:
        assert time.monotonic() < over
        time.sleep(0.5)
        producer.send(b"more", key=b"same").result(LIMIT_S)


def test_the_longest_note_is_taken(client: penstock.Client) -> None:
    topic = "t" * 249
    client.create_topic(topic, 1)
    note = SourceNote("c" * 22, topic, None, 0).coming_through(f"cluster-{number:014}" for number in range(60))
    for producer in range(10**18, 10**18 + 200):
        note = note.written_by(producer, producer)
    assert len(note.encode()) > 4000
    client.cursor(topic, group_of("x" * 100)).commit({0: Mark(7, note.encode())})
    assert find(client, Partition(topic, 0)).feeders[Partition(topic, 0)][0].note == note


def test_pipelines_are_found_on_whichever_broker_their_books_are(
    real_kafka_cluster: KafkaCluster, connect: Connect
) -> None:
    client = connect(real_kafka_cluster.url)
    topic = new_topic()
    client.create_topic(topic, 1)
    names = [f"{topic}-{number}" for number in range(12)]
    for number, name in enumerate(names):
        client.cursor(topic, group_of(name)).commit({0: Mark(1, NOTE.written_by(number, 0).encode())})
    homes = {client._core._cursors.homes._nodes[FindHome(group_of(name), of_group=True)] for name in names}
    assert len(homes) > 1
    origins = find(client, Partition(topic, 0))
    assert sorted(feeder.pipeline for feeder in origins.feeders[Partition(topic, 0)]) == sorted(names)
