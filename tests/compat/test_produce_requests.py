"""What a broker refuses or rewrites in a Produce request: the same batches, byte by byte, to both.

Each row is a topic's settings and the batches that are sent to it, one request each. What is told of a batch is the
answer, and what of its bytes had changed when it was read back from the log.
"""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import cramjam
import lz4.frame  # type: ignore[import-untyped]
import pytest
import zstandard

from tests.compat.confluent import create, outcome
from tests.compat.raw import (
    TIME_MS,
    Batch,
    ClosedError,
    Wire,
    api,
    produce,
    produce_request,
    record,
    records,
    stored_batches,
)
from tests.compat.sides import Outcome, Side, Sides

FIELDS = {
    "length": slice(8, 12),
    "magic": slice(16, 17),
    "crc": slice(17, 21),
    "attributes": slice(21, 23),
    "last offset delta": slice(23, 27),
    "base timestamp": slice(27, 35),
    "max timestamp": slice(35, 43),
    "producer": slice(43, 57),
    "count": slice(57, 61),
    "payload": slice(61, None),
}
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
COMPRESS: dict[int, Callable[[bytes], bytes]] = {
    0: lambda data: data,
    GZIP: gzip.compress,
    SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
    LZ4: lambda data: lz4_frame(data, block_linked=False),
    ZSTD: lambda data: zstandard.ZstdCompressor().compress(data),
}
lz4_frame: Any = lz4.frame.compress
BLOCKSIZE_MAX64KB: Any = lz4.frame.BLOCKSIZE_MAX64KB
BLOCKSIZE_MAX4MB: Any = lz4.frame.BLOCKSIZE_MAX4MB
HOUR_MS = 3_600_000


def plain(count: int = 3, codec: int = 0, **fields: Any) -> Batch:
    """A batch that is right but for the fields that are given."""
    attributes = fields.pop("attributes", 0) | codec
    return Batch(COMPRESS[codec](records(count)), count, attributes=attributes, **fields)


GOOD = plain()
MINE = replace(GOOD, producer_id=7_000_001, producer_epoch=0, base_sequence=0)


@dataclass(frozen=True, slots=True)
class Row:
    """What is sent: batches in requests of their own, to one new topic."""

    batches: Sequence[Batch | bytes]
    settings: dict[str, str] = field(default_factory=dict)
    version: int = 8
    acks: int = -1
    transactional_id: str | None = None


def one(batch: Batch | bytes, **more: Any) -> Row:
    return Row([batch], **more)


def codec_rows() -> dict[str, Row]:
    names = {"none": 0, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
    rows = {f"a good batch, {name}": one(plain(codec=codec)) for name, codec in names.items()}
    wanted = {"lz4 to gzip": (LZ4, "gzip"), "lz4 to none": (LZ4, "uncompressed"), "none to lz4": (0, "lz4")}
    rows |= {
        f"a topic with its own codec, {name}": one(plain(codec=codec), settings={"compression.type": own})
        for name, (codec, own) in wanted.items()
    }
    rows["a topic with its own codec, lz4 to lz4"] = one(plain(codec=LZ4), settings={"compression.type": "lz4"})
    return rows


def payload_rows() -> dict[str, Row]:
    three = records(3)
    linked = lz4_frame(b"x" * 300_000 + three, block_linked=True, block_size=BLOCKSIZE_MAX64KB)
    return {
        "garbage in a compressed payload": one(Batch(b"\x04" * 40, 3, attributes=LZ4)),
        "garbage in a plain payload": one(Batch(b"\xfe" * 40, 3)),
        "a codec that there is not": one(Batch(three, 3, attributes=5)),
        "fewer records than counted": one(Batch(records(2), 3)),
        "more records than counted": one(Batch(records(4), 3)),
        "fewer records than counted, compressed": one(Batch(COMPRESS[LZ4](records(2)), 3, attributes=LZ4)),
        "bytes behind the records": one(Batch(three + b"\x00\x01\x02", 3)),
        "record deltas that stand still": one(Batch(records(3, (0, 0, 1)), 3)),
        "record deltas that stand still, compressed": one(
            Batch(COMPRESS[GZIP](records(3, (0, 0, 1))), 3, attributes=GZIP)
        ),
        "record deltas that do not start at 0": one(Batch(records(3, (1, 2, 3)), 3)),
        "linked lz4 blocks": one(Batch(linked, 3, attributes=LZ4)),
        "two lz4 frames": one(Batch(COMPRESS[LZ4](records(1)) + COMPRESS[LZ4](records(2, (1, 2))), 3, attributes=LZ4)),
        "lz4 with size and checksum": one(
            Batch(
                lz4_frame(three, block_linked=False, content_checksum=True, store_size=True),
                3,
                attributes=LZ4,
            )
        ),
        "lz4 with blocks of 4 MB": one(
            Batch(lz4_frame(three, block_linked=False, block_size=BLOCKSIZE_MAX4MB), 3, attributes=LZ4)
        ),
        "lz4 with blocks of 4 MB that are full": one(
            Batch(
                lz4_frame(record(bytes(5_000_000)), block_linked=False, block_size=BLOCKSIZE_MAX4MB), 1, attributes=LZ4
            )
        ),
        "two zstd frames": one(
            Batch(COMPRESS[ZSTD](records(1)) + COMPRESS[ZSTD](three[len(records(1)) :]), 3, attributes=ZSTD)
        ),
        "two gzip members": one(
            Batch(gzip.compress(records(1)) + gzip.compress(records(2, (1, 2))), 3, attributes=GZIP)
        ),
        "no records": one(Batch(b"", 0, last_offset_delta=0)),
        "no records, last delta -1": one(Batch(b"", 0)),
    }


def header_rows() -> dict[str, Row]:
    two = GOOD.encode() + GOOD.encode()
    return {
        "base offset 5": one(replace(GOOD, base_offset=5)),
        "leader epoch 77": one(replace(GOOD, leader_epoch=77)),
        "wrong checksum": one(replace(GOOD, crc=1)),
        "last delta too large": one(replace(GOOD, last_offset_delta=9)),
        "last delta too small": one(replace(GOOD, last_offset_delta=1)),
        "last delta negative": one(replace(GOOD, last_offset_delta=-1)),
        "count negative": one(replace(GOOD, count=-1, last_offset_delta=2)),
        "two batches for a partition": one(two),
        "control bit": one(replace(GOOD, attributes=0x20)),
        "cut short": one(GOOD.encode()[:-5]),
        "shorter than a header": one(GOOD.encode()[:30]),
        "no bytes": one(b""),
        "length too large": one(replace(GOOD, length=5000)),
        "length too small": one(replace(GOOD, length=20)),
        "magic 0": one(replace(GOOD, magic=0)),
        "magic 1": one(replace(GOOD, magic=1)),
        "magic 3": one(replace(GOOD, magic=3)),
        "unused attribute 0x40": one(replace(GOOD, attributes=0x40)),
        "unused attribute 0x100": one(replace(GOOD, attributes=0x100)),
        "log-append bit on a topic with the sender's time": one(replace(GOOD, attributes=0x08)),
        "max timestamp wrong": one(replace(GOOD, max_timestamp=TIME_MS + 500)),
        "max timestamp wrong, compressed": one(replace(plain(codec=LZ4), max_timestamp=TIME_MS + 500)),
        "a topic with log-append time": one(GOOD, settings={"message.timestamp.type": "LogAppendTime"}),
        "a topic with log-append time, compressed": one(
            plain(codec=ZSTD), settings={"message.timestamp.type": "LogAppendTime"}
        ),
    }


def time_rows() -> dict[str, Row]:
    limits = {"message.timestamp.after.max.ms": str(HOUR_MS), "message.timestamp.before.max.ms": str(HOUR_MS)}
    far = 4_000_000_000_000
    return {
        "far in the future": one(replace(GOOD, base_timestamp=far)),
        "far in the future, without a limit": one(
            replace(GOOD, base_timestamp=far), settings={"message.timestamp.after.max.ms": str(2**62)}
        ),
        "long ago, with a limit": one(GOOD, settings=limits),
        "time 0": one(replace(GOOD, base_timestamp=0)),
        "time -1": one(Batch(b"".join([records(1)]), 1, base_timestamp=-1)),
    }


def producer_rows() -> dict[str, Row]:
    later = replace(MINE, base_sequence=3)
    return {
        "the same sequence again": Row([MINE, MINE]),
        "the next sequence": Row([MINE, later]),
        "a gap in the sequence": Row([MINE, replace(MINE, base_sequence=5)]),
        "a sequence from before": Row([MINE, later, replace(MINE, base_sequence=6), MINE]),
        "six batches, then the first again": Row([*(replace(MINE, base_sequence=3 * n) for n in range(6)), MINE]),
        "six batches, then the second again": Row([*(replace(MINE, base_sequence=3 * n) for n in range(6)), later]),
        "half of a batch again": Row(
            [replace(plain(4), producer_id=7_000_001, producer_epoch=0, base_sequence=0), MINE]
        ),
        "an unknown producer in the middle": one(replace(MINE, base_sequence=5)),
        "a producer without a sequence": one(replace(MINE, base_sequence=-1)),
        "a producer without an epoch": one(replace(MINE, producer_epoch=-1)),
        "an older epoch": Row([replace(MINE, producer_epoch=2), replace(MINE, producer_epoch=1, base_sequence=3)]),
        "a newer epoch from 0": Row([MINE, replace(MINE, producer_epoch=1)]),
        "a newer epoch from the middle": Row([MINE, replace(MINE, producer_epoch=1, base_sequence=3)]),
        "sequences that go round": Row([replace(MINE, base_sequence=2**31 - 2), replace(MINE, base_sequence=1)]),
        "transactional bit without an id": one(replace(MINE, attributes=0x10)),
        "transactional bit, id of nobody": one(replace(MINE, attributes=0x10), transactional_id="nobody-has-this-id"),
        "transactional id without the bit": one(MINE, transactional_id="nobody-has-this-id"),
    }


def request_rows() -> dict[str, Row]:
    million = record(b"x" * 5_000_000)
    return {
        **{f"version {version}": one(GOOD, version=version) for version in range(3, 13)},
        "zstd in version 6": one(plain(codec=ZSTD), version=6),
        "acks 2": one(GOOD, acks=2),
        "acks -2": one(GOOD, acks=-2),
        "acks 1": one(GOOD, acks=1),
        "larger than the topic takes": one(plain(200), settings={"max.message.bytes": "1000"}),
        "exactly what the topic takes": one(GOOD, settings={"max.message.bytes": str(len(GOOD.encode()))}),
        "one byte more than the topic takes": one(GOOD, settings={"max.message.bytes": str(len(GOOD.encode()) - 1)}),
        "no key in a compacted topic": one(Batch(records(3, key=None), 3), settings={"cleanup.policy": "compact"}),
        "no key in a compacted topic, compressed": one(
            Batch(COMPRESS[LZ4](records(3, key=None)), 3, attributes=LZ4), settings={"cleanup.policy": "compact"}
        ),
        "small when compressed, large when not": one(Batch(COMPRESS[ZSTD](million), 1, attributes=ZSTD)),
    }


TABLE = codec_rows() | payload_rows() | header_rows() | time_rows() | producer_rows() | request_rows()


@pytest.mark.parametrize("name", TABLE)
def test_a_produce_request(sides: Sides, name: str) -> None:
    row = TABLE[name]

    def script(side: Side) -> Outcome:
        if "error" in (topic := outcome(lambda: create(side, "t", config=row.settings))):
            return {"topic": f"refused: {topic['error']}"}
        sent = [batch if isinstance(batch, bytes) else batch.encode() for batch in row.batches]
        answers = [answer_to(side, topic, row, batch) for batch in sent]
        stored = {place_of(batch): batch for batch in stored_batches(side.address, topic)}
        places = [None if isinstance(answer, str) else answer.base_offset for answer in answers]
        assert stored.keys() == {place for place in places if place not in (None, -1)}, "stored, but not told"
        return {
            "topic": "made",
            "answers": [
                shown(answer, batch, stored, place in places[:at])
                for at, (answer, batch, place) in enumerate(zip(answers, sent, places, strict=True))
            ],
        }

    assert sides.alike(script)["topic"] == "made"


def answer_to(side: Side, topic: str, row: Row, batch: bytes) -> Any:
    """What the broker says to it; a word when it is no answer."""
    try:
        with Wire(side.address) as wire:
            return produce(wire, produce_request(topic, [batch], row.version, row.acks, row.transactional_id))
    except ClosedError:
        return "connection closed"


def place_of(batch: bytes) -> int:
    return int.from_bytes(batch[:8])


def shown(answer: Any, sent: bytes, stored: Mapping[int, bytes], again: bool) -> str:
    """An answer in words, and what became of the batch."""
    if isinstance(answer, str):
        return answer
    blamed = [each.batch_index for each in getattr(answer, "record_errors", ())]
    if answer.error_code.value:
        return f"{answer.error_code.name}{f', records {blamed}' if blamed else ''}"
    told = f"at {answer.base_offset}{', with a time' if answer.log_append_time is not None else ''}"
    if again:
        return f"{told}, where it was"
    changed = [name for name, part in FIELDS.items() if stored[answer.base_offset][part] != sent[part]]
    return f"{told}, {'with another ' + ' and '.join(changed) if changed else 'as sent'}"


@pytest.mark.parametrize("version", [0, 1, 2, 14, 99])
def test_versions_of_produce_that_nobody_speaks_any_more_or_yet(sides: Sides, version: int) -> None:
    def script(side: Side) -> Outcome:
        frame = bytes(itertools.chain((0, 0, 0, version, 0, 0, 0, 1, 255, 255), b"\x00" * 30))
        try:
            with Wire(side.address) as wire:
                wire.send_frame(frame)
                return {"answer": len(wire.receive()) > 0}
        except ClosedError:
            return {"answer": "closed"}

    assert sides.alike(script) == {"answer": "closed"}


def test_partitions_and_topics_that_are_not_there(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 1)
        module = api("produce", 8)
        request = produce_request(topic, [GOOD.encode()] * 3)
        unknown = module.TopicProduceData(
            name=side.name("nothing"), partition_data=request.topic_data[0].partition_data[:1]
        )
        request = replace(request, topic_data=(*request.topic_data, unknown))
        with Wire(side.address) as wire:
            wire.ask(produce_request(topic, [GOOD.encode()]))
            answer = wire.ask(request)
        return {
            each.name: sorted([part.index, part.error_code.name, part.base_offset] for part in each.partition_responses)
            for each in answer.responses
        }

    told = sides.alike(script)
    first, *rest = [code for _, code, _ in told["partitions_and_topics_that_are_not_there-t"]]
    assert first == "none"
    assert "none" not in rest
