"""A real Apache Kafka of one or more nodes on loopback, with its data in a temporary folder.

Nodes are numbered from 1; each is broker and controller at once (KRaft). All of it is gone after `stop`, and also when
this process dies in any way (see `process.py`). Ports are chosen once and kept over `kill` and `restart`.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from brokers import jars, jvm
from brokers.errors import BrokerError
from brokers.jars import Say
from brokers.jvm import FUNCTIONAL, Profile
from brokers.kafka_config import NodePorts, new_cluster_id, node_properties, render
from brokers.kafka_probe import nodes_seen
from brokers.ports import LOOPBACK, free_ports, is_free
from brokers.process import Guarded, Usage
from brokers.runtime import find_java

READY_LIMIT_S = 120.0  # seconds on a quiet machine, a minute on a busy one
POLL_S = 0.05
SAY_EVERY_S = 2.0
START_ATTEMPTS = 3
DISK_BYTES_MIN = 256 << 20
PORT_TAKEN = "Address already in use"


class PortLostError(BrokerError):
    """A port that was free when chosen had been taken when Kafka came to it."""


class KafkaCluster:
    """One real Kafka. Runs on: any one thread at a time."""

    def __init__(
        self,
        nodes: int = 1,
        *,
        profile: Profile = FUNCTIONAL,
        properties: Mapping[str, str] | None = None,
        port: int | None = None,
        folder: Path | None = None,
        say: Say = lambda _: None,
    ) -> None:
        """`port` is node 1's, the next nodes take the following ones; None chooses. `folder` is where data may go."""
        self.nodes = range(1, nodes + 1)
        self.profile = profile
        self._properties = dict(properties or {})
        self._port = port
        self._parent = folder
        self._say = say
        self._folder: Path | None = None
        self._ports: list[NodePorts] = []
        self._running: dict[int, Guarded] = {}
        self._paused: set[int] = set()

    def __repr__(self) -> str:
        states = ", ".join(f"{node} {self._state(node)}" for node in self.nodes)
        return f"<KafkaCluster {self.bootstrap if self._ports else 'not started'}: {states}>"

    def _state(self, node: int) -> str:
        if node in self._paused:
            return "paused"
        return "running" if node in self._running and self._running[node].running else "down"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """`host:port` of every node, as Kafka clients want it."""
        return ",".join(f"{LOOPBACK}:{ports.broker}" for ports in self._ports)

    @property
    def url(self) -> str:
        """The cluster's URL as Penstock wants it."""
        return f"kafka://{self.bootstrap}"

    def address(self, node: int) -> tuple[str, int]:
        """Where a node serves clients."""
        return LOOPBACK, self._ports[node - 1].broker

    def pid(self, node: int) -> int:
        """The process id of a running node."""
        return self._running[node].pid

    def log(self, node: int) -> Path:
        """The file that a node writes its log to."""
        return self._root / f"node-{node}.log"

    def data(self, node: int) -> Path:
        """The folder that holds a node's topics."""
        return self._root / f"node-{node}" / "data"

    def usage(self) -> dict[int, Usage]:
        """CPU seconds and memory of every running node since its start."""
        return {node: process.usage() for node, process in sorted(self._running.items())}

    def start(self) -> Self:
        """Start all nodes and wait until each of them sees all of them."""
        self._java, self._jars = find_java(), jars.ensure("kafka", self._say)
        for attempt in range(1, START_ATTEMPTS + 1):
            self._prepare()
            try:
                self._start_all()
            except PortLostError:
                self.stop()
                if self._port is not None or attempt == START_ATTEMPTS:
                    raise
            except BrokerError:
                self._end(self.nodes)  # the logs stay, the error names one
                self._remove_data()
                raise
            except BaseException:
                self.stop()
                raise
            else:
                return self
        raise AssertionError("unreachable: the last attempt returns or raises")

    def stop(self) -> None:
        """End every node and remove everything it wrote."""
        self._end(self.nodes)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def kill(self, node: int) -> None:
        """End a node with `kill -9`; its data stays for `restart`."""
        self._end([node])

    def shut_down(self, node: int, limit_s: float = 60.0) -> None:
        """End a node as an operator would: it hands its partitions over first; its data stays for `restart`."""
        self.resume(node)
        self._running[node].signal(signal.SIGTERM)
        if self._running[node].wait(limit_s) is None:
            raise BrokerError(f"Kafka node {node} did not end within {limit_s:.0f} s; its log: {self.log(node)}")
        self._end([node])

    def restart(self, node: int) -> None:
        """Start a node again on its ports and its data, ending it first where it still runs; wait until it works."""
        self._end([node])
        self._start(node)
        self._wait_ready()

    def pause(self, node: int) -> None:
        """Freeze a node: its connections stay open and nothing answers."""
        self._running[node].freeze()
        self._paused.add(node)

    def resume(self, node: int) -> None:
        """Let a paused node go on."""
        self._running[node].thaw()
        self._paused.discard(node)

    def heal(self) -> None:
        """Bring back whatever a fault test left paused or down."""
        for node in list(self._paused):
            self.resume(node)
        down = [node for node in self.nodes if self._state(node) == "down"]
        self._end(down)
        for node in down:
            self._start(node)
        if down:
            self._wait_ready()

    @property
    def _root(self) -> Path:
        if self._folder is None:
            raise BrokerError("this Kafka is not started; call start() first")
        return self._folder

    def _prepare(self) -> None:
        """Choose ports and make the folder with every node's settings."""
        self._ports = self._choose_ports()
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="penstock-kafka-", dir=self._parent))
            for node in self.nodes:
                self.data(node).mkdir(parents=True)
                settings = node_properties(node, self._ports, self.data(node), self._properties)
                self._settings(node).write_text(render(settings))
            self._log4j.write_text(jvm.LOG4J)
            room = shutil.disk_usage(self._folder).free
        except OSError as error:
            self.stop()
            raise BrokerError(
                f"Kafka's data cannot be kept in {self._parent or tempfile.gettempdir()}: {error.strerror}; "
                "make it writable or set TMPDIR to another folder"
            ) from error
        if room < DISK_BYTES_MIN:
            self.stop()
            raise BrokerError(
                f"Kafka needs {DISK_BYTES_MIN >> 20} MB free in {self._parent or tempfile.gettempdir()}, "
                f"there are {room >> 20} MB; make room or set TMPDIR to another folder"
            )

    def _choose_ports(self) -> list[NodePorts]:
        count = len(self.nodes)
        if self._port is None:
            free = free_ports(2 * count)
            return [NodePorts(*pair) for pair in zip(free[:count], free[count:], strict=True)]
        wanted = range(self._port, self._port + count)
        if taken := [port for port in wanted if not is_free(port)]:
            raise BrokerError(f"port {taken[0]} on {LOOPBACK} is taken; stop what listens there or name another port")
        return [NodePorts(*pair) for pair in zip(wanted, free_ports(count), strict=True)]

    def _settings(self, node: int) -> Path:
        return self._root / f"node-{node}" / "server.properties"

    @property
    def _log4j(self) -> Path:
        return self._root / "log4j2.properties"

    def _java_command(self, *arguments: str) -> list[str]:
        return jvm.command(self._java, self.profile, self._jars, self._log4j, *arguments)

    def _start_all(self) -> None:
        self._format()
        self._say(f"starting Kafka, {len(self.nodes)} node{'s' if len(self.nodes) > 1 else ''}, on {self.bootstrap}")
        for node in self.nodes:
            self._start(node)
        self._wait_ready()

    def _format(self) -> None:
        """Write each node's first metadata, all of them at the same time."""
        self._say("formatting the data folders")
        cluster_id = new_cluster_id()
        for node in self.nodes:
            arguments = ("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._settings(node)))
            self._running[node] = Guarded.start(self._java_command(*arguments), self.log(node), remove=self._root)
        for node in self.nodes:
            if status := self._running.pop(node).wait(READY_LIMIT_S):
                raise self._failure(node, f"could not format its data folder (status {status})")

    def _start(self, node: int) -> None:
        command = self._java_command("kafka.Kafka", str(self._settings(node)))
        self._running[node] = Guarded.start(command, self.log(node), remove=self._root)

    def _wait_ready(self) -> None:
        """Wait until every node that runs sees every node that runs."""
        started = told = time.monotonic()
        waiting = awaited = set(self._running) - self._paused
        while waiting:
            if dead := [node for node in awaited if not self._running[node].running]:
                raise self._failure(dead[0], "ended while it started")
            now = time.monotonic()
            if now - started > READY_LIMIT_S:
                raise self._failure(min(waiting), f"was not ready after {READY_LIMIT_S:.0f} s")
            if now - told >= SAY_EVERY_S:
                told = now
                self._say(f"waiting for {self._describe(waiting)} to see the whole cluster ({now - started:.0f} s)")
            time.sleep(POLL_S)
            waiting = {node for node in waiting if not awaited <= nodes_seen(self._ports[node - 1].broker)}

    def _describe(self, nodes: Iterable[int]) -> str:
        return ", ".join(f"node {node} on {LOOPBACK}:{self._ports[node - 1].broker}" for node in sorted(nodes))

    def _failure(self, node: int, what: str) -> BrokerError:
        """The error that a node's log explains."""
        lines = self.log(node).read_text(errors="replace").splitlines()
        if any(PORT_TAKEN in line for line in lines):
            ports = self._ports[node - 1]
            return PortLostError(f"port {ports.broker} or {ports.controller} of Kafka node {node} is taken; try again")
        if any("No space left on device" in line for line in lines):
            return BrokerError(f"Kafka node {node} has no disk room in {self._root}; make room or set TMPDIR")
        told = next((line for line in lines if " ERROR " in line or "Exception" in line), "nothing")
        return BrokerError(f"Kafka node {node} {what}; its log {self.log(node)} says: {told[:300]}")

    def _end(self, nodes: Iterable[int]) -> None:
        """Kill those of the nodes that run."""
        ending = [self._running[node] for node in nodes if node in self._running]
        for process in ending:
            process.signal(signal.SIGKILL)
        for process in ending:
            process.kill()
        for node in list(nodes):
            self._running.pop(node, None)
            self._paused.discard(node)

    def _remove_data(self) -> None:
        for node in self.nodes:
            shutil.rmtree(self._root / f"node-{node}", ignore_errors=True)
