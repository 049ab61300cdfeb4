"""What the fuzzer feeds: the same bytes to both twins, whose outcomes must be equal and no other error than theirs.

The first byte of an input chooses what the rest is: records to be gathered, a batch to be decoded (its magic, length
and checksum are put right first, so that the layers below are reached), or messages to be framed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import DecodeError
from penstock.wire.columns import BufferColumns, from_arrow
from penstock.wire.compression import Codec, compress
from penstock.wire.entry import PropertyClaim
from penstock.wire.kafka.framing import NO_HEADERS, frame_header
from penstock.wire.kafka.header import peek, split
from penstock.wire.kafka.layout import BATCH_HEADER_BYTES, CODEC_NUMBERS, LENGTH_END, MAGIC
from tests.wire.kafka.entries import make_entry, record, with_fields, write
from tests.wire.kafka.messages import Sent, map_column
from tests.wire.kafka.twins import COMPILED, PLAIN, Kit, Twin, kit_of, load_twin, outcome, shape_of, state_of

BYTES_MAX = 1 << 18
MESSAGES_MAX = 8
NAMES = ("", "a", "region", "größe")


class Fuzzed:
    """The twins, and the target functions over them."""

    def __init__(self) -> None:
        self.twins: tuple[Twin, Twin] = load_twin(PLAIN), load_twin(COMPILED)
        self.kits: tuple[Kit, Kit] = kit_of(self.twins[0]), kit_of(self.twins[1])
        self.targets: tuple[Callable[[bytes], None], ...] = (self.gather, self.decode, self.frame)

    def feed(self, data: bytes) -> None:
        """Run one input; AssertionError or any error that is not allowed is a finding."""
        if data:
            self.targets[data[0] % len(self.targets)](data[1:])

    def gather(self, data: bytes) -> None:
        """The first byte is the count of records."""
        if not data:
            return
        # An array of its own: the sanitizer sees a read past its end, which it would not see in a larger object.
        payload = np.frombuffer(data[1:], np.uint8).copy()
        plain, compiled = (told(lambda twin=twin: shape_of(twin.gather(payload, data[0], 7, 9))) for twin in self.twins)  # type: ignore[misc]
        assert plain == compiled, (plain, compiled)

    def decode(self, data: bytes) -> None:
        """A batch."""
        entry = data
        if len(entry) >= BATCH_HEADER_BYTES:
            entry = with_fields(entry, magic=MAGIC, length=len(entry) - LENGTH_END)
        told(lambda: split(data))
        told(lambda: peek(entry, bytes_max=BYTES_MAX))
        plain, compiled = (told(lambda kit=kit: opened(kit, entry)) for kit in self.kits)  # type: ignore[misc]
        assert plain == compiled, (plain, compiled)

    def frame(self, data: bytes) -> None:
        """Messages: one by one, as a list and as columns, and a header put in front of the first."""
        rest = iter(data)
        bytes_max = (61, 200, 5000, BYTES_MAX)[next(rest, 0) % 4]
        messages = list(islice(drawn(rest), MESSAGES_MAX))
        plain, compiled = (twin.RecordBuffer(bytes_max) for twin in self.twins)
        for sent in messages:
            assert outcome(plain.append, *sent) == outcome(compiled.append, *sent)
        assert state_of(plain) == state_of(compiled)
        values, keys = [sent.value for sent in messages], [sent.key for sent in messages]
        properties = [sent.properties for sent in messages]
        times = np.array([sent.time_ms for sent in messages], np.int64)
        columns = from_arrow(pa.array(values, pa.binary()), pa.array(keys, pa.binary()), map_column(properties), times)
        for extend in (
            lambda buffer: buffer.extend_list(values, keys, properties, times, NO_HEADERS, 0),
            lambda buffer: buffer.extend_list(values, keys, None, times, NO_HEADERS, 0),
            lambda buffer: buffer.extend_columns(columns, NO_HEADERS, 0),
            lambda buffer: buffer.insert_header(frame_header("name", values[0] if values else None)),
        ):
            assert outcome(extend, plain) == outcome(extend, compiled)
            assert state_of(plain) == state_of(compiled)
        framed = state_of(plain)[0]
        gathered = [shape_of(twin.gather(framed, plain.count, 0, 0)) for twin in self.twins]
        assert gathered[0] == gathered[1]


def told(call: Callable[[], Any]) -> Any:
    """What a decoder returned, or all that the one error tells that is allowed to it."""
    try:
        return call()
    except DecodeError as error:
        return type(error), str(error)


def opened(kit: Kit, entry: bytes) -> Any:
    """The buffers of a batch, from which Arrow makes columns that it calls valid."""
    columns: BufferColumns = kit.decode_buffers(entry, bytes_max=BYTES_MAX)
    kit.decode(entry, bytes_max=BYTES_MAX).to_record_batch().validate(full=True)
    return shape_of(columns)


def drawn(rest: Iterator[int]) -> Iterator[Sent]:
    """Messages whose sizes and shapes the input's bytes choose."""
    for shape in rest:
        sizes = [next(rest, 0), next(rest, 0)]
        value, key = (
            None if shape >> bit & 1 else bytes(size * (100 if shape & 4 else 1)) for bit, size in enumerate(sizes)
        )
        count = (0, 1, 3, 25)[shape >> 3 & 3]
        properties = {f"{NAMES[i % 4]}{i}": (None, "text", b"\xff")[(i + shape) % 3] for i in range(count)}
        time_ms = min((next(rest, 0) - 2) << (shape >> 5) * 8, (1 << 63) - 1)
        yield Sent(value, key, properties if count else None, time_ms)


def seeds() -> list[bytes]:
    """Inputs to start from: well-formed ones of every kind, and ones that once failed."""
    gathered = [bytes([0, count]) + payload for count, payload in payloads()]
    frames = [b"\x02" + bytes(range(size)) for size in (0, 1, 4, 40, 200)]
    frames += [b"\x02\x03" + bytes([shape, 5, 9, 77]) * 3 for shape in range(0, 256, 5)]
    return gathered + [b"\x01" + entry for entry in entries()] + frames + FAILED_ONCE


def payloads() -> list[tuple[int, bytes]]:
    """Records, and how many."""
    header = frame_header("name", b"value") + frame_header("", None)
    one = record(key=b"\x06key", value=b"\x0avalue", header_count=b"\x04", headers=header)
    return [(0, b""), (1, record()), (1, one), (5, (record() + one) * 2 + record(value=b"\x00"))]


def entries() -> list[bytes]:
    """Batches of every codec, with and without a claim."""
    messages = [Sent(b"value" * 9, b"key", {"a": "1", "b": None}, 100), Sent(None), Sent(b"", b"", {}, 90)]
    claim = PropertyClaim({"a": "1"}, {"b": frozenset(("x", None))})
    made = [write(messages, codec) for codec in Codec]
    made += [write(messages, codec, claim=claim) for codec in Codec]
    made += [make_entry(compress(codec, b""), attributes=CODEC_NUMBERS[codec]) for codec in Codec]
    return made


# Inputs that were findings, in hex; the fuzzer starts from them and a quick test runs them.
FAILED_ONCE: list[bytes] = []
