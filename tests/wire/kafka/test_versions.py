"""The choice of versions, from brokers of several ages."""

from __future__ import annotations

import confluent_kafka
import pytest

from brokers.kafka import KafkaCluster
from penstock.errors import RefusedError
from penstock.wire.kafka import schema
from penstock.wire.kafka.versions import (
    API_VERSIONS,
    APIS,
    END_TXN,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    Api,
    Versions,
)
from penstock.wire.protocol import ClusterView, Identify, Identity, LookUp, Stored
from tests.wire.kafka.ranges import KAFKA_2_1, KAFKA_2_8, KAFKA_3_9, KAFKA_4_3, Ranges, every_version
from tests.wire.kafka.real import batch, publish, stamp
from tests.wire.kafka.talk import LIMIT_S, read_back, talk


@pytest.mark.parametrize(("api", "version"), every_version())
def test_keys_and_flexible_versions_are_kafkas(api: Api, version: int) -> None:
    for side, header in (("Request", {False: 1, True: 2}), ("Response", {False: 0, True: 1})):
        kind = getattr(schema.module_of(api, version, side.lower()), f"{api}{side}")
        assert kind.__api_key__ == api.key
        assert kind.__flexible__ == api.is_flexible(version)
        expected = 0 if (api, side) == (API_VERSIONS, "Response") else header[api.is_flexible(version)]
        assert kind.__header_schema__.__version__ == expected


@pytest.mark.parametrize(
    ("ranges", "chosen"),
    [
        (KAFKA_2_1, [7, 10, 4, 7, 6, 5, 2, 2, 2, 3, 3, 1, 2, 1, 1, 1, 2, 2, 1]),
        (KAFKA_2_8, [9, 12, 6, 11, 8, 7, 3, 4, 3, 7, 6, 4, 4, 3, 3, 3, 3, 4, 3, 1]),
        (KAFKA_3_9, [11, 17, 9, 12, 9, 9, 6, 5, 3, 7, 6, 5, 4, 3, 4, 4, 4, 4, 3, 1]),
        (KAFKA_4_3, [12, 17, 10, 13, 9, 9, 6, 5, 3, 7, 6, 5, 4, 3, 4, 5, 5, 4, 3, 1]),
    ],
    ids=["2.1", "2.8", "3.9", "4.3"],
)
def test_highest_common_version_is_chosen(ranges: Ranges, chosen: list[int]) -> None:
    versions = Versions(ranges, {})
    assert [versions.choose(api) for api in APIS if api.key in ranges] == chosen


@pytest.mark.parametrize("features", [{}, {"transaction.version": 1}, {"metadata.version": 30}])
def test_old_transactions_keep_to_versions_that_enlist(features: dict[str, int]) -> None:
    versions = Versions(KAFKA_4_3, features)
    apis = (PRODUCE, INIT_PRODUCER_ID, TXN_OFFSET_COMMIT, END_TXN)
    assert not versions.enlists
    assert [versions.choose(api, in_transaction=True) for api in apis] == [11, 4, 4, 4]
    assert [versions.choose(api) for api in apis] == [12, 5, 5, 5]


def test_new_transactions_use_the_newest_versions() -> None:
    versions = Versions(KAFKA_4_3, {"transaction.version": 2})
    assert versions.enlists
    apis = (PRODUCE, INIT_PRODUCER_ID, TXN_OFFSET_COMMIT, END_TXN)
    assert [versions.choose(api, in_transaction=True) for api in apis] == [12, 5, 5, 5]


def test_a_broker_that_lacks_the_versions_for_new_transactions_is_not_believed_to_have_them() -> None:
    versions = Versions(KAFKA_4_3 | {PRODUCE.key: (0, 11)}, {"transaction.version": 2})
    assert not versions.enlists
    assert versions.choose(END_TXN, in_transaction=True) == 4


@pytest.mark.parametrize(
    ("there", "text"),
    [
        ((0, 2), "UNSUPPORTED_VERSION: Produce: versions 3 to 12 are spoken here, 0 to 2 by the broker"),
        ((13, 20), "UNSUPPORTED_VERSION: Produce: versions 3 to 12 are spoken here, 13 to 20 by the broker"),
        (None, "UNSUPPORTED_VERSION: Produce: versions 3 to 12 are spoken here, the broker does not serve it at all"),
    ],
)
def test_no_common_version_is_an_error_that_names_both_ranges(there: tuple[int, int] | None, text: str) -> None:
    ranges = {METADATA.key: (0, 13)} | ({} if there is None else {PRODUCE.key: there})
    with pytest.raises(RefusedError) as raised:
        Versions(ranges, {}).choose(PRODUCE)
    assert str(raised.value) == text


def test_the_recorded_ranges_of_the_newest_kafka_are_those_of_a_real_one(real_kafka: KafkaCluster) -> None:
    with talk(real_kafka.address(1)) as broker:
        told = broker.connection.versions._ranges
        assert {key: told[key] for key in KAFKA_4_3} == KAFKA_4_3
        assert broker.ready is not None
        assert broker.ready.features["transaction.version"] == 2
        assert broker.ready.enlists


def test_librdkafkas_mock_cluster_is_understood() -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": "ignored", "test.mock.num.brokers": 1})
    (broker,) = producer.list_topics(timeout=LIMIT_S).brokers.values()
    with talk((broker.host, broker.port)) as mock:
        cluster = mock.ask(LookUp(frozenset({"orders"}), create=True))
        assert isinstance(cluster, ClusterView)
        assert set(cluster.topics) == {"orders"}
        identity = mock.ask(Identify())
        assert isinstance(identity, Identity)
        invented_ms = 1234  # the mock's own log-append time
        assert publish(mock, batch("orders", b"a", b"b", stamp=stamp(identity, 0))) == Stored(0, invented_ms)
        assert publish(mock, batch("orders", b"c", stamp=stamp(identity, 2))) == Stored(2, invented_ms)
        read = read_back(f"{broker.host}:{broker.port}", "orders")
        assert [message.value for message in read] == [b"a", b"b", b"c"]
