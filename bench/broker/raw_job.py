"""Produce requests made once and sent again and again: `python -m bench.broker.raw_job JOB RESULT`.

What takes a client's time is left out, so that the broker is what is measured: the bytes of a request are the same each
time, several are in flight on each connection, and of an answer only the error is looked at.
"""

from __future__ import annotations

import json
import os
import random
import select
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.peers.load import values
from bench.peers.measure import Figures, Meter
from penstock.wire.compression import Codec
from penstock.wire.kafka.buffer import BatchBuffer

PRODUCE, VERSION = 0, 8
FETCH_BYTES = 1 << 16
POLL_S = 60.0
WARMUP_REQUESTS = 500
# length | correlation | topics | name length; and then, behind the name: partitions | index | error
ANSWER = struct.Struct(">iiih")
OUTCOME = struct.Struct(">iih")


@dataclass(frozen=True, slots=True)
class RawJob:
    """What to send, to whom, and how much of it at a time."""

    host: str
    port: int
    topic: str
    partitions: int
    batch_bytes: int
    value_bytes: int
    requests: int
    connections: int
    depth: int
    acks: int
    pids: Mapping[str, int]

    @property
    def name(self) -> str:
        return f"{self.batch_bytes} B, {self.connections} connections, {self.depth} deep, {self.partitions}p"


def batch_of(size: int, value_bytes: int) -> tuple[bytes, int]:
    """A batch of at most this size, of values that are all different, and how many they are."""
    buffer = BatchBuffer(size)
    count = sum(1 for value in values(value_bytes) * (size // (value_bytes * 900) + 1) if buffer.append(value) >= 0)
    buffer.seal(Codec.NONE)
    return b"".join(bytes(part) for part in buffer.stamp()), count


def frame(topic: str, partition: int, acks: int, batch: bytes) -> bytes:
    """A whole Produce request."""
    name = topic.encode()
    body = struct.pack(">hhihhhi", PRODUCE, VERSION, 0, -1, -1, acks, 30_000)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, partition, len(batch)) + batch
    return struct.pack(">i", len(body)) + body


class Line:
    """One connection with requests in flight."""

    def __init__(self, job: RawJob, frames: list[bytes], first: int) -> None:
        self.socket = socket.create_connection((job.host, job.port), POLL_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.asked = self.answered = 0
        self._frames = frames
        self._next = first
        self._pending = b""
        self._skip = ANSWER.size + len(job.topic)

    def send(self, count: int) -> None:
        """So many requests more, to one partition after the other."""
        frames, at = self._frames, self._next
        size = len(frames)
        self.socket.sendall(b"".join(frames[(at + n) % size] for n in range(count)) if count > 1 else frames[at % size])
        self._next = at + count
        self.asked += count

    def receive(self) -> int:
        """How many answers have come; an error is raised."""
        data = self._pending + self.socket.recv(FETCH_BYTES)
        at, end, count = 0, len(data), 0
        while end - at >= 4:
            length = int.from_bytes(data[at : at + 4])
            if end - at < 4 + length:
                break
            if (error := OUTCOME.unpack_from(data, at + self._skip)[2]) != 0:
                raise RuntimeError(f"the broker refused a request with {error}")
            at += 4 + length
            count += 1
        if not count and end == len(self._pending):
            raise RuntimeError("the broker closed the connection")
        self._pending = data[at:]
        self.answered += count
        return count


def exchange(lines: list[Line], depth: int, requests: int) -> None:
    """Send so many requests over all lines, and read all answers."""
    left = requests
    poller = select.epoll()
    by_number = {line.socket.fileno(): line for line in lines}
    for line in lines:
        poller.register(line.socket, select.EPOLLIN)
        first = min(depth, left)
        if first:
            line.send(first)
        left -= first
    waiting = requests
    while waiting:
        ready = poller.poll(POLL_S)
        if not ready:
            raise RuntimeError(f"{waiting} requests were not answered")
        for number, _ in ready:
            line = by_number[number]
            came = line.receive()
            waiting -= came
            more = min(came, left)
            if more:
                line.send(more)
                left -= more
    poller.close()


def run(job: RawJob) -> Figures:
    """The job, its first requests not counted."""
    batch, count = batch_of(job.batch_bytes, job.value_bytes)
    frames = [frame(job.topic, partition, job.acks, batch) for partition in range(job.partitions)]
    random.Random(1).shuffle(frames)
    lines = [Line(job, frames, at * len(frames) // job.connections) for at in range(job.connections)]
    exchange(lines, job.depth, warmup_of(job))
    meter = Meter({"client": os.getpid(), **job.pids})
    exchange(lines, job.depth, job.requests)
    size = {"bytes": float(len(batch) * job.requests), "per_request": float(count)}
    return meter.figures("raw requests", job.name, job.requests, size)


def warmup_of(job: RawJob) -> int:
    """How many requests are not counted: each partition has had one."""
    return max(job.partitions, min(WARMUP_REQUESTS, job.requests))


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps(asdict(run(RawJob(**given)))))
