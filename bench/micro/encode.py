"""10,000 messages into batches: a list or Arrow columns by ours, one call per message by others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import TypeAlias

from crc32c import crc32c

from bench.micro.kernels import ours, plain
from bench.micro.messages import BATCH_BYTES, SIZES, TIME_MS, Messages, Told, make
from bench.micro.peers import PACKAGES, Peer, peers, rows_of
from bench.results import Bar, Section
from bench.timing import Clock, interleave
from penstock.wire.columns import from_arrow
from penstock.wire.kafka.buffer import BatchBuffer

NAME = "micro.encode"
COUNT = 10_000
FLOOR = "join, crc32c"
COMPARED = """\
10,000 messages into uncompressed batches of at most 256 KB, in CPU time of the measuring thread per message. Every side
starts from a list in memory (ours also from Arrow columns) and ends with batches ready to be sent, checksum included:
ours with `extend`, `seal` and `stamp` in a buffer that is used again for the next batch, as the product does; the
others with a new builder for each batch, one `append` per message and `build`. The ratio tells how many times as fast
ours is. `join, crc32c` is no encoder: it joins the bare values to strings of 256 KB and makes their checksums, which no
encoder can do without.
"""

Ship: TypeAlias = Callable[..., object]
Encoder: TypeAlias = Callable[[Messages, Ship], None]


def run(rounds: int, count: int = COUNT) -> Section:
    """Check that all frame the same messages, then time them."""
    rows = []
    for size_name, size in SIZES.items():
        for with_properties in (False, True):
            messages = make(count, size, with_properties=with_properties)
            check(messages)
            everybody = encoders() if with_properties else encoders() | {FLOOR: join_and_checksum}
            contestants = {name: partial(encode, messages, drop) for name, encode in everybody.items()}
            timings = interleave(contestants, rounds, Clock.THREAD)
            case = f"{size_name}, key, 2 properties" if with_properties else size_name
            rows += rows_of(timings, ("list", "columns"), case, count, Bar("≥", 5 if with_properties else 10))
    return Section(NAME, COMPARED, rows, rounds, PACKAGES)


def encoders() -> dict[str, Encoder]:
    """All contestants by name."""
    compiled, twin = ours().BatchBuffer(BATCH_BYTES), plain().BatchBuffer(BATCH_BYTES)
    return {
        "list": partial(encode_list, compiled),
        "columns": partial(encode_columns, compiled),
        **{peer.name: partial(encode_each, peer) for peer in peers()},
        "plain twin": partial(encode_list, twin),
    }


def encode_list(batch: BatchBuffer, messages: Messages, ship: Ship) -> None:
    """Ours, from lists."""
    done = 0
    while done < len(messages):
        done += batch.extend(messages.values, messages.keys, messages.properties, TIME_MS, done)
        batch.seal()
        ship(*batch.stamp())
        batch.clear()


def encode_columns(batch: BatchBuffer, messages: Messages, ship: Ship) -> None:
    """Ours, from Arrow columns."""
    columns = from_arrow(messages.value_column, messages.key_column, messages.property_column, TIME_MS)
    done = 0
    while done < len(messages):
        done += batch.extend(columns, start=done)
        batch.seal()
        ship(*batch.stamp())
        batch.clear()


def encode_each(peer: Peer, messages: Messages, ship: Ship) -> None:
    """Theirs, message by message."""
    keys = messages.keys or repeat(None, len(messages))
    builder, index = peer.new_builder(), 0
    append = builder.append
    for value, key, headers in zip(messages.values, keys, messages.headers, strict=True):
        if append(index, TIME_MS, key, value, headers) is None:
            ship(builder.build())
            builder, index = peer.new_builder(), 0
            append = builder.append
            append(index, TIME_MS, key, value, headers)
        index += 1
    ship(builder.build())


def join_and_checksum(messages: Messages, ship: Ship) -> None:
    """Nobody's: what is left when nothing is framed."""
    at_once = BATCH_BYTES // len(messages.values[0])
    for begin in range(0, len(messages), at_once):
        joined = b"".join(messages.values[begin : begin + at_once])
        ship(joined, crc32c(joined))


def drop(*_: object) -> None:
    """Take a batch, as a connection would, and forget it."""


def check(messages: Messages) -> None:
    """Whatever a contestant ships must hold all the messages, by the word of another client's reader."""
    reader = peers()[1].reader
    expected = messages.told()
    for name, encode in encoders().items():
        batches: list[bytes] = []
        encode(messages, lambda *parts, into=batches: into.append(b"".join(parts)))
        found: list[Told] = []
        for batch in map(reader, batches):
            assert batch.validate_crc(), f"{name}: the checksum of a batch is wrong"
            found += [Told(record.value, record.key, record.headers, record.timestamp) for record in batch]
        assert found == expected, f"{name} did not frame the messages that the others framed"
