"""Points of a copy, kept at its target: told, read again, told apart by the log that they are of."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Client
from penstock.broker.embedded import EmbeddedBroker
from penstock.errors import ConfigError, UnknownTopicError
from penstock.replicate import point_log
from penstock.replicate.mirror_formats import OffsetSync, syncs_topic
from penstock.replicate.point_log import LOG, PointLog, PointMaps, PointWriter
from penstock.replicate.position_map import Point
from penstock.wire.columns import PROPERTIES
from penstock.wire.protocol import Partition
from tests.consume.faces import new_id

LIMIT_S = 60.0
ORDERS = Partition("orders", 0)
BILLS = Partition("bills", 3)
OLD, NEW = UUID(int=1), UUID(int=2)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with penstock.embedded() as made:
        yield made


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    with penstock.connect(broker.url, client_id=new_id()) as made:
        yield made


@pytest.fixture
def alias() -> str:
    return f"a{uuid.uuid4().hex[:8]}"


Told = tuple[Partition, Point, UUID | None]


def tell(client: Client, alias: str, *points: Told) -> None:
    writer = PointWriter(client, alias)
    for receipt in [writer.tell(*point) for point in points]:
        receipt.result(LIMIT_S)
    writer.close()


def batch_of(told: list[Told]) -> pa.RecordBatch:
    records = [OffsetSync(*partition, *point).encode() for partition, point, _ in told]
    properties = [[] if log is None else [("other", b"x"), (LOG, log.bytes)] for _, _, log in told]
    keys, values = [key for key, _ in records], [value for _, value in records]
    arrays = [pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.array(properties, PROPERTIES)]
    return pa.RecordBatch.from_arrays(arrays, ["key", "value", "properties"])


def test_points_are_read_as_they_were_told(client: Client, alias: str) -> None:
    tell(client, alias, (ORDERS, Point(0, 0), NEW), (BILLS, Point(7, 1), NEW), (ORDERS, Point(10, 50), NEW))
    maps = PointLog(client, alias).read_on()
    assert maps.topics() == ["bills", "orders"]
    assert [maps.get(ORDERS, NEW).target_of(source) for source in (0, 9, 10, 12)] == [0, 9, 50, 52]
    assert maps.get(BILLS, NEW).source_of(2) == 8
    assert maps.get(Partition("bills", 0), NEW).first is None
    assert maps.unreadable == 0


def test_reading_goes_on_where_it_ended(client: Client, alias: str) -> None:
    tell(client, alias, (ORDERS, Point(0, 0), NEW))
    log = PointLog(client, alias)
    assert len(log.read_on().get(ORDERS, NEW)) == 1
    assert len(log.read_on().get(ORDERS, NEW)) == 1
    tell(client, alias, (ORDERS, Point(5, 9), NEW), (ORDERS, Point(3, 20), NEW))
    assert [log.read_on().get(ORDERS, NEW).target_of(source) for source in (2, 3, 5)] == [2, 20, 22]
    assert "2 points" in repr(log)


def test_the_topic_forgets_nothing_and_has_one_partition(client: Client, alias: str) -> None:
    tell(client, alias)
    tell(client, alias, (ORDERS, Point(0, 0), None))
    assert client.partitions(syncs_topic(alias)) == 1
    with client.reader(syncs_topic(alias), end="latest", columns=["properties"]) as reader:
        assert reader.read_all(LIMIT_S).to_pylist() == [{"properties": []}]


def test_a_copier_that_was_replaced_tells_late_and_is_not_heard(client: Client, alias: str) -> None:
    before = [(ORDERS, Point(0, 0), NEW), (ORDERS, Point(10, 11), NEW)]
    successor = [(ORDERS, Point(10, 22), NEW), (ORDERS, Point(1000, 40), NEW)]
    tell(client, alias, *before, *successor, (ORDERS, Point(13, 15), NEW))
    found = PointLog(client, alias).read_on().get(ORDERS, NEW)
    assert [found.target_of(source, 100) for source in (5, 10, 999, 1000)] == [5, 22, 40, 40]


def test_points_of_another_log_are_not_mixed_with_these(client: Client, alias: str) -> None:
    tell(client, alias, (ORDERS, Point(0, 0), OLD), (ORDERS, Point(50, 500), OLD), (ORDERS, Point(60, 0), NEW))
    maps = PointLog(client, alias).read_on()
    assert (maps.get(ORDERS, NEW).target_of(55), maps.get(ORDERS, NEW).target_of(65)) == (None, 5)
    assert maps.get(ORDERS, OLD).target_of(65) == 515
    assert maps.get(ORDERS, UUID(int=3)).first is None


def test_points_that_do_not_say_of_which_log_they_are_do(client: Client, alias: str) -> None:
    tell(client, alias, (ORDERS, Point(0, 0), None), (ORDERS, Point(50, 500), None), (ORDERS, Point(60, 3), None))
    maps = PointLog(client, alias).read_on()
    for log in (NEW, None):
        assert maps.get(ORDERS, log).target_of(70) == 13, "a target position that fell is of a log made anew"


def test_what_is_no_point_is_counted_and_passed_over(client: Client, alias: str) -> None:
    tell(client, alias, (ORDERS, Point(5, 6), None))
    key, value = OffsetSync(*ORDERS, 9, 20).encode()
    with client.producer(syncs_topic(alias)) as producer:
        for pair in ((value, None), (value, b"no key"), (None, key), (value[:-1], key), (b"", key)):
            producer.send(*pair)
        producer.send(OffsetSync(*ORDERS, -1, 5).encode()[1], key)
        producer.send(OffsetSync(*ORDERS, 5, -1).encode()[1], key)
        producer.send(value, key)
    maps = PointLog(client, alias).read_on()
    assert maps.unreadable == 7
    assert [maps.get(ORDERS, None).target_of(source) for source in (4, 5, 9)] == [None, 6, 20]


def test_nothing_but_what_is_no_point_is_no_map(client: Client, alias: str) -> None:
    tell(client, alias)
    with client.producer(syncs_topic(alias)) as producer:
        producer.send(b"hello")
    maps = PointLog(client, alias).read_on()
    assert (len(maps), maps.unreadable, maps.topics()) == (0, 1, [])


def test_where_nothing_was_told_the_error_says_where_it_was_looked_for(client: Client) -> None:
    with pytest.raises(UnknownTopicError, match=r"no topic mm2-offset-syncs\.nobody\.internal.* under this alias"):
        PointLog(client, "nobody").read_on()
    with pytest.raises(ConfigError, match="alias: "):
        PointLog(client, "no body")


def test_a_log_of_points_that_was_made_anew_is_read_anew(client: Client, alias: str) -> None:
    tell(client, alias, (ORDERS, Point(0, 0), NEW), (ORDERS, Point(5, 6), NEW))
    log = PointLog(client, alias)
    log.read_on()
    client.delete_topic(syncs_topic(alias))
    tell(client, alias, (ORDERS, Point(7, 100), NEW), (BILLS, Point(1, 1), NEW), (BILLS, Point(2, 2), NEW))
    maps = log.read_on()
    assert (maps.get(ORDERS, NEW).target_of(5), maps.get(ORDERS, NEW).target_of(7)) == (None, 100)


def test_points_that_were_deleted_before_they_were_read_are_not_known(
    client: Client, alias: str, broker: EmbeddedBroker
) -> None:
    tell(client, alias, (ORDERS, Point(0, 0), NEW))
    log = PointLog(client, alias)
    log.read_on()
    tell(client, alias, (ORDERS, Point(5, 6), NEW), (ORDERS, Point(7, 9), NEW), (ORDERS, Point(9, 20), NEW))
    delete_before(broker.bootstrap, syncs_topic(alias), 3)
    found = log.read_on().get(ORDERS, NEW)
    assert [found.target_of(source) for source in (6, 9)] == [None, 20]


def delete_before(bootstrap: str, topic: str, position: int, partition: int = 0) -> None:
    """Have an official admin delete what is before a position."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(topic, partition, position)]).values():
        future.result(LIMIT_S)


POINTS = st.tuples(
    st.sampled_from([ORDERS, BILLS, Partition("orders", 1)]),
    st.builds(Point, st.integers(0, 40), st.integers(0, 40)),
    st.sampled_from([None, OLD, NEW]),
)


@settings(max_examples=50)
@given(batches=st.lists(st.lists(POINTS, max_size=10), max_size=8), least=st.integers(0, 30))
def test_points_come_to_the_same_however_many_are_put_into_maps_at_a_time(
    batches: list[list[Told]], least: int
) -> None:
    few, one_by_one = PointMaps(), PointMaps()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(point_log, "FOLD_MIN", least)
        for told in batches:
            few.take(batch_of(told))
        few.fold()
    for point in [point for told in batches for point in told]:
        one_by_one.take(batch_of([point]))
        one_by_one.fold()
    assert few.topics() == one_by_one.topics()
    for partition, log in {(partition, log) for told in batches for partition, _, log in told}:
        found, wanted = few.get(partition, log), one_by_one.get(partition, log)
        assert [found.target_of(source) for source in range(45)] == [wanted.target_of(source) for source in range(45)]
        assert len(found) == len(wanted)


def test_memory_is_two_numbers_for_each_point_that_tells_something() -> None:
    maps = PointMaps()
    told: list[Any] = [(ORDERS, Point(10 * number, 11 * number), NEW) for number in range(1000)]
    maps.take(batch_of(told))
    maps.fold()
    assert maps.get(ORDERS, NEW).nbytes == 16_000
