"""10,000 stored messages back: into Arrow columns by ours, record by record by others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from bench.micro.encode import encode_list
from bench.micro.kernels import Ours, ours, plain
from bench.micro.messages import BATCH_BYTES, SIZES, Messages, Told, make, told_by
from bench.micro.peers import PACKAGES, Peer, peers, rows_of
from bench.results import Bar, Section
from bench.timing import Clock, interleave

NAME = "micro.decode"
COUNT = 10_000
COMPARED = """\
The same 10,000 messages in their batches of at most 256 KB, read, in CPU time of the measuring thread per message.
Every side verifies the checksum. Ours makes five Arrow arrays of each batch (position, event time, key, value,
properties); the others make an object of each message, whose offset, timestamp, key, value and headers are looked at
once. The ratio tells how many times as fast ours is.
"""

Decoder: TypeAlias = Callable[[Sequence[bytes]], object]


def run(rounds: int, count: int = COUNT) -> Section:
    """Check that all read the same messages, then time them."""
    rows = []
    for size_name, size in SIZES.items():
        for with_properties in (False, True):
            messages = make(count, size, with_properties=with_properties)
            batches = batches_of(messages)
            check(messages, batches)
            contestants = {name: partial(decode, batches) for name, decode in decoders().items()}
            timings = interleave(contestants, rounds, Clock.THREAD)
            case = f"{size_name}, key, 2 properties" if with_properties else size_name
            rows += rows_of(timings, ("columns",), case, count, Bar("≥", 2 if with_properties else 3))
    return Section(NAME, COMPARED, rows, rounds, PACKAGES)


def batches_of(messages: Messages) -> list[bytes]:
    """The messages as a log would store them."""
    batches: list[bytes] = []
    encode_list(ours().BatchBuffer(BATCH_BYTES), messages, lambda *parts: batches.append(b"".join(parts)))
    return batches


def decoders() -> dict[str, Decoder]:
    """All contestants by name."""
    return {
        "columns": partial(decode_columns, ours()),
        **{peer.name: partial(decode_each, peer) for peer in peers()},
        "plain twin": partial(decode_columns, plain()),
    }


def decode_columns(kit: Ours, batches: Sequence[bytes]) -> None:
    """Ours."""
    for batch in batches:
        kit.decode(batch)


def decode_each(peer: Peer, batches: Sequence[bytes]) -> None:
    """Theirs."""
    for batch in map(peer.reader, batches):
        assert batch.validate_crc()
        for record in batch:
            record.offset, record.timestamp, record.key, record.value, record.headers  # noqa: B018


def check(messages: Messages, batches: Sequence[bytes]) -> None:
    """Every contestant must read every message, whole and at its place."""
    expected = list(zip(_offsets(batches), messages.told(), strict=True))
    for kit in (ours(), plain()):
        found = [row for batch in batches for row in _rows(kit, batch)]
        assert found == expected, f"{kit} did not read the messages that were written"
    for peer in peers():
        records = (record for batch in map(peer.reader, batches) for record in batch)
        read = [(r.offset, Told(r.value, r.key, list(r.headers), r.timestamp)) for r in records]
        assert read == expected, f"{peer.name} did not read the messages that were written"


def _offsets(batches: Sequence[bytes]) -> Iterable[int]:
    for batch in batches:
        yield from range(int.from_bytes(batch[57:61], "big"))


def _rows(kit: Ours, batch: bytes) -> Iterator[tuple[int, Told]]:
    columns = kit.decode(batch)
    return zip(columns.position.to_pylist(), told_by(columns), strict=True)
