"""A real Kafka of ours: official clients use it, it survives `kill -9`, and it leaves nothing behind."""

from __future__ import annotations

import socket
import time
import uuid
from pathlib import Path

import pytest

from brokers import kafka, ports, process
from brokers.errors import BrokerError
from brokers.kafka import KafkaCluster
from brokers.kafka_probe import nodes_seen
from brokers.ports import LOOPBACK
from tests.brokers.clients import CLIENTS, Client, confluent_read, confluent_send
from tests.brokers.sockets import listening

VALUES = [b"message %d" % number for number in range(1000)]


@pytest.fixture(params=[1, 3])
def any_kafka(request: pytest.FixtureRequest) -> KafkaCluster:
    found = request.getfixturevalue("real_kafka" if request.param == 1 else "real_kafka_cluster")
    assert isinstance(found, KafkaCluster)
    return found


def new_topic() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_an_official_client_reads_back_what_it_sent(any_kafka: KafkaCluster, client: Client) -> None:
    topic = new_topic()
    client.send(any_kafka.bootstrap, topic, VALUES)
    assert client.read(any_kafka.bootstrap, topic, len(VALUES)) == VALUES


def test_messages_survive_kill_9_and_restart(any_kafka: KafkaCluster) -> None:
    topic = new_topic()
    confluent_send(any_kafka.bootstrap, topic, VALUES)
    before = any_kafka.pid(1)
    any_kafka.kill(1)
    assert process.start_ticks(before) is None
    if len(any_kafka.nodes) > 1:
        assert confluent_read(any_kafka.bootstrap, topic, len(VALUES)) == VALUES
    any_kafka.restart(1)
    assert any_kafka.pid(1) != before
    assert confluent_read(any_kafka.bootstrap, topic, len(VALUES)) == VALUES


def test_a_paused_node_keeps_its_port_open_and_does_not_answer(real_kafka: KafkaCluster) -> None:
    _, port = real_kafka.address(1)
    real_kafka.pause(1)
    with socket.create_connection((LOOPBACK, port), 5):
        assert nodes_seen(port, timeout_s=0.5) == set()
    real_kafka.resume(1)
    assert nodes_seen(port, timeout_s=30) == {1}


@pytest.mark.stress
def test_what_a_test_left_paused_or_dead_is_healed(real_kafka_cluster: KafkaCluster) -> None:
    real_kafka_cluster.pause(1)
    real_kafka_cluster.kill(3)
    real_kafka_cluster.heal()
    for node in real_kafka_cluster.nodes:
        assert nodes_seen(real_kafka_cluster.address(node)[1], timeout_s=30) == {1, 2, 3}


def test_every_node_listens_on_loopback_only(any_kafka: KafkaCluster) -> None:
    for node in any_kafka.nodes:
        addresses = listening(any_kafka.pid(node))
        assert any_kafka.address(node) in addresses
        assert {host for host, _ in addresses} == {LOOPBACK}


def test_usage_tells_cpu_and_memory_of_each_node(any_kafka: KafkaCluster) -> None:
    usage = any_kafka.usage()
    assert list(usage) == list(any_kafka.nodes)
    assert all(node.cpu_s > 0.5 and node.rss_bytes > 50 << 20 for node in usage.values())


@pytest.mark.stress
def test_nothing_is_left_after_stop(kafka_parts: None) -> None:
    before = process.left_running(process.owner_name())
    with KafkaCluster(properties={"num.partitions": "7"}) as cluster:
        folder = cluster.log(1).parent
        assert set(process.left_running(process.owner_name())) - set(before)
        assert "num.partitions=7" in (folder / "node-1" / "server.properties").read_text()
    assert process.left_running(process.owner_name()) == before
    assert not folder.exists()


def test_a_taken_port_is_refused_before_anything_starts(kafka_parts: None) -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BrokerError, match=rf"port {port} on 127.0.0.1 is taken; stop what listens there"):
            KafkaCluster(port=port).start()


@pytest.mark.stress
def test_a_port_lost_to_somebody_quicker_is_chosen_anew(kafka_parts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    choices: list[list[int]] = []
    real = ports.free_ports
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()

        def first_a_taken_one(count: int) -> list[int]:
            choices.append(real(count))
            return [taken.getsockname()[1], *choices[0][1:]] if len(choices) == 1 else choices[-1]

        monkeypatch.setattr(kafka, "free_ports", first_a_taken_one)
        with KafkaCluster() as cluster:
            assert cluster.address(1)[1] == choices[1][0]


def test_a_folder_that_cannot_be_written_is_one_line(kafka_parts: None, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        BrokerError, match=r"Kafka's data cannot be kept in .*; make it writable or set TMPDIR"
    ) as error:
        KafkaCluster(folder=tmp_path / "file").start()
    assert "\n" not in str(error.value)


def test_a_full_disk_is_one_line_and_leaves_nothing(
    kafka_parts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "DISK_BYTES_MIN", 1 << 60)
    with pytest.raises(BrokerError, match=r"Kafka needs .* MB free in .*; make room or set TMPDIR"):
        KafkaCluster(folder=tmp_path).start()
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_dies_at_start_is_one_line_from_its_log(kafka_parts: None, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(BrokerError, match=r"Kafka node 1 .*; its log .*node-1.log says: .*num.io.threads") as error:
        KafkaCluster(folder=tmp_path, properties={"num.io.threads": "none"}).start()
    assert "\n" not in str(error.value)
    assert time.monotonic() - started < kafka.READY_LIMIT_S
    assert [path.name for path in tmp_path.rglob("node-1*")] == ["node-1.log"]
