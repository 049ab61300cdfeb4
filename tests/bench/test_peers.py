"""Every peer runs once, small, and its figures look like those found out beforehand, within a factor of 20."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from bench.peers import java_perf, mirror_maker, python_peers, spark_connector
from bench.peers.load import Load
from bench.peers.measure import Figures
from brokers import process
from brokers.errors import BrokerUnavailableError
from brokers.jvm import BENCHMARK
from brokers.kafka import KafkaCluster
from brokers.ports import LOOPBACK
from tests.brokers.sockets import listening

pytestmark = pytest.mark.stress

LOAD = Load(200_000)
SMALL = Load(40_000)
PLAIN = Load(40_000, compression="none")  # kafka-python has no lz4 without a further package
FACTOR = 20
Run = Callable[[KafkaCluster, KafkaCluster], Figures]
# CPU seconds per million messages of 100 bytes: of the peer, of its broker or of the busier of its two.
PER_MILLION: dict[str, tuple[float, float, Run]] = {
    "confluent produce": (2.8, 1.0, lambda a, _: python_peers.produce(a, LOAD)),
    "confluent produce_batch": (2.2, 0.7, lambda a, _: python_peers.produce(a, LOAD, action="produce_batch")),
    "confluent consume": (1.3, 0.4, lambda a, _: python_peers.consume(a, LOAD)),
    "confluent mirror": (3.5, 0.8, lambda a, b: python_peers.mirror(a, b, LOAD)),
    "aiokafka produce": (19.2, 5.0, lambda a, _: python_peers.produce(a, SMALL, "aiokafka")),
    "aiokafka consume": (3.0, 1.0, lambda a, _: python_peers.consume(a, SMALL, "aiokafka")),
    "kafka-python produce": (40.0, 10.0, lambda a, _: python_peers.produce(a, PLAIN, "kafka-python")),
    "kafka-python consume": (10.0, 1.0, lambda a, _: python_peers.consume(a, PLAIN, "kafka-python")),
    "Java produce": (4.0, 0.8, lambda a, _: java_perf.produce(a, LOAD)),
    "Java produce 1 MB": (3.0, 0.4, lambda a, _: java_perf.produce(a, LOAD, batch_bytes=1 << 20)),
    "Java consume": (3.0, 0.6, lambda a, _: java_perf.consume(a, LOAD)),
    "MirrorMaker default": (8.8, 2.7, lambda a, b: mirror_maker.copy(a, b, LOAD)),
    "MirrorMaker tuned": (10.0, 1.9, lambda a, b: mirror_maker.copy(a, b, LOAD, tuned=True)),
    "Spark read": (3.8, 1.0, lambda a, _: spark_connector.read(a, LOAD)),
    "Spark write": (1.5, 0.7, lambda a, _: spark_connector.write(a, LOAD)),
    "Spark copy": (4.8, 1.0, lambda a, b: spark_connector.copy(a, b, LOAD)),
}


@pytest.fixture(scope="module")
def kafkas(kafka_parts: None) -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """Two Kafkas as benchmarks use them."""
    with KafkaCluster(profile=BENCHMARK) as first, KafkaCluster(profile=BENCHMARK) as second:
        yield first, second


@pytest.fixture
def listeners() -> Iterator[set[str]]:
    """The addresses on which anything that this run started has listened."""
    seen: set[str] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.25):
            for pid in process.left_running(process.owner_name()):
                try:
                    seen.update(host for host, _ in listening(pid))
                except OSError:  # it ended meanwhile
                    continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield seen
    done.set()
    watcher.join()


@pytest.mark.parametrize("name", PER_MILLION)
def test_a_peer_runs_and_its_figures_look_right(
    name: str,
    kafkas: tuple[KafkaCluster, KafkaCluster],
    listeners: set[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    client_cost, broker_cost, run = PER_MILLION[name]
    if name.startswith("Spark"):
        install_or_skip()
    figures = run(*kafkas)
    with capsys.disabled():
        sys.stdout.write(f"\n{figures} ")
    first = {"MirrorMaker": "mirror-maker", "Spark": "spark-java"}.get(name.split()[0], "client")
    costs = figures.cpu_s_per_million
    brokers = [cost for process_name, cost in costs.items() if process_name in ("broker", "source", "target")]
    assert figures.rate > 0
    if "MirrorMaker" in name:  # what was there when it was first looked at is not counted
        assert 0.2 * LOAD.messages < figures.messages < LOAD.messages
    else:
        assert figures.messages == (SMALL if "kafka" in name else LOAD).messages
    assert client_cost / FACTOR < costs[first] < client_cost * FACTOR, str(figures)
    assert len(brokers) == (2 if "target" in costs else 1)
    tick = 0.02 * 1e6 / figures.messages  # what the kernel's clock of CPU time may have missed
    assert broker_cost / FACTOR - tick < max(brokers) < broker_cost * FACTOR, str(figures)
    assert listeners <= {LOOPBACK}


def install_or_skip() -> None:
    try:
        spark_connector.environment()
    except BrokerUnavailableError as error:
        pytest.skip(f"no real broker: {error}")
