"""The same batches through the codecs of aiokafka and kafka-python: theirs read by us, ours read by them."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from penstock.wire.compression import Codec
from penstock.wire.entry import EntryFlag, PropertyClaim, Stamp
from penstock.wire.kafka.claim import NAME
from penstock.wire.kafka.header import peek, rewrite_header
from penstock.wire.kafka.layout import CODEC_NUMBERS
from tests.wire.kafka.entries import read, with_fields, write
from tests.wire.kafka.messages import NOW_MS, Read, Sent, expected
from tests.wire.kafka.twins import Kit

aiokafka_records = pytest.importorskip("aiokafka.record.default_records")
kafka_records = pytest.importorskip("kafka.record.default_records")
kafka_codec = pytest.importorskip("kafka.codec")

AIOKAFKA = [(aiokafka_records, codec) for codec in Codec]
# kafka-python reads a codec where the library for it is installed.
KAFKA_PYTHON = [
    (kafka_records, codec) for codec in Codec if codec is Codec.NONE or getattr(kafka_codec, f"has_{codec.value}")()
]
EACH_PEER = pytest.mark.parametrize("peer", [aiokafka_records, kafka_records], ids=["aiokafka", "kafka"])
PEERS = pytest.mark.parametrize(
    ("peer", "codec"),
    AIOKAFKA + KAFKA_PYTHON,
    ids=lambda given: given.value if isinstance(given, Codec) else given.__name__.partition(".")[0],
)

SETS: dict[str, list[Sent]] = {
    "plain": [Sent(f"value {i}".encode(), time_ms=NOW_MS + i) for i in range(100)],
    "keys and nulls": [
        Sent(b"v", b"k", None, NOW_MS),
        Sent(None, b"tombstone", None, NOW_MS + 1),
        Sent(b"no key", None, None, NOW_MS + 2),
        Sent(b"", b"", None, NOW_MS + 3),
        Sent(None, None, None, NOW_MS + 4),
    ],
    "headers": [
        Sent(b"v", None, {"a": b"1", "größe": b"\xff\x00", "none": None, "empty": b""}, NOW_MS),
        Sent(b"v", None, {}, NOW_MS),
        Sent(b"v", None, {f"p{i}": b"x" * i for i in range(40)}, NOW_MS),
    ],
    "falling times": [Sent(b"v", time_ms=NOW_MS - i * 1000) for i in range(5)],
    "large": [Sent(bytes(range(256)) * 1000, b"k" * 20_000, {"h": b"x" * 9000}, NOW_MS)] * 3,
    "one": [Sent(b"alone", b"k", {"a": b"b"}, NOW_MS)],
    "many": [Sent(b"v%d" % (i % 7), b"k", {"n": b"%d" % i}, NOW_MS) for i in range(3000)],
}
SAMPLES = pytest.mark.parametrize("messages", SETS.values(), ids=SETS.keys())


class Facts(NamedTuple):
    """What both sides can tell of a batch's header."""

    base_offset: int
    codec: int
    is_transactional: bool
    max_time_ms: int
    producer: int
    epoch: int
    sequence: int


def theirs(peer: ModuleType, entry: bytes) -> tuple[Facts, list[Read]]:
    """A batch as the peer reads it."""
    batch = peer.DefaultRecordBatch(entry)
    assert batch.validate_crc()
    facts = Facts(
        batch.base_offset,
        batch.compression_type,
        batch.is_transactional,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
    )
    return facts, [Read(one.offset, one.timestamp, one.key, one.value, tuple(one.headers)) for one in batch]


def built(peer: ModuleType, messages: Sequence[Sent], codec: Codec, stamp: Stamp = Stamp()) -> bytes:  # noqa: B008
    """A batch as the peer builds it."""
    number = CODEC_NUMBERS[codec]
    builder = peer.DefaultRecordBatchBuilder(2, number, stamp.transactional, *stamp[:3], 1 << 26)
    for i, sent in enumerate(messages):
        headers: Any = list((sent.properties or {}).items())
        assert builder.append(i, sent.time_ms, sent.key, sent.value, headers) is not None
    return bytes(builder.build())


@PEERS
@SAMPLES
def test_peer_reads_what_we_write(kit: Kit, peer: ModuleType, codec: Codec, messages: list[Sent]) -> None:
    stamp = Stamp(producer=1 << 40, epoch=9, sequence=1234, transactional=True)
    facts, records = theirs(peer, write(messages, codec, stamp=stamp, make=kit.BatchBuffer))
    assert records == expected(messages)
    latest = max(sent.time_ms for sent in messages)
    assert facts == Facts(0, CODEC_NUMBERS[codec], True, latest, *stamp[:3])


@PEERS
@SAMPLES
def test_we_read_what_the_peer_writes(kit: Kit, peer: ModuleType, codec: Codec, messages: list[Sent]) -> None:
    stamp = Stamp(producer=77, epoch=1, sequence=5, transactional=True)
    entry = built(peer, messages, codec, stamp)
    assert read(kit.decode(entry)) == expected(messages)
    header = peek(entry)
    # The peers leave a batch uncompressed when that is smaller.
    assert header.codec in (codec, Codec.NONE)
    assert header[4:10] == (len(messages) - 1, header.min_time_ms, max(sent.time_ms for sent in messages), 77, 1, 5)
    assert header.flags == EntryFlag.TRANSACTIONAL


@EACH_PEER
@SAMPLES
def test_peers_uncompressed_batch_is_ours_to_the_byte(kit: Kit, peer: ModuleType, messages: list[Sent]) -> None:
    ours = write(messages, make=kit.BatchBuffer)
    assert built(peer, messages, Codec.NONE) == with_leader_epoch_of(peer, ours)


def with_leader_epoch_of(peer: ModuleType, entry: bytes) -> bytes:
    """The leader epoch is outside the checksum, and each client puts there what it likes."""
    theirs_at = built(peer, [Sent(b"", time_ms=0)], Codec.NONE)[12:16]
    return entry[:12] + theirs_at + entry[16:]


@PEERS
def test_rewritten_batch_of_a_peer_is_read_by_it(peer: ModuleType, codec: Codec) -> None:
    messages = SETS["many"]
    entry = with_fields(built(peer, messages, codec), base_offset=4000, leader_epoch=3)
    facts, records = theirs(peer, b"".join(rewrite_header(entry, Stamp(5, 6, 7))))
    assert records == expected(messages)
    assert facts[4:] == (5, 6, 7)
    assert facts.base_offset == 0


@PEERS
def test_peer_sees_a_claim_as_one_more_header_of_the_first_message(kit: Kit, peer: ModuleType, codec: Codec) -> None:
    messages = SETS["headers"]
    claim = PropertyClaim({"a": "1"}, {"city": frozenset(("oslo",))})
    _, records = theirs(peer, write(messages, codec, claim=claim, make=kit.BatchBuffer))
    name, text = records[0].properties[0]
    assert name == NAME
    assert text == b'{"same":{"a":"1"},"listed":{"city":["oslo"]}}'
    records[0] = records[0]._replace(properties=records[0].properties[1:])
    assert records == expected(messages)


@EACH_PEER
def test_claim_that_travels_through_a_peer_is_not_believed(kit: Kit, peer: ModuleType) -> None:
    _, records = theirs(peer, write(SETS["headers"], claim=PropertyClaim({"a": "1"}), make=kit.BatchBuffer))
    again = [Sent(one.value, one.key, dict(one.properties), one.time_ms) for one in records]
    entry = built(peer, again, Codec.NONE)
    assert not peek(entry).claim
    assert read(kit.decode(entry)) == expected(again)
