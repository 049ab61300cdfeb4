"""Entries on their way to a target: unopened, or packed anew for a reason; the same messages in the same order, always,
and of each it is known where it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config import ReaderOptions
from penstock.consume.feed import Load, Part
from penstock.consume.judge import Judge, Wanted
from penstock.consume.stats import ReaderStats
from penstock.errors import DecodeError
from penstock.replicate import consignment as module
from penstock.replicate.consignment import Consignment, Packer, Packing, Reason, Repack
from penstock.replicate.position_map import PositionMap
from penstock.replicate.runs import Runs, Stretches
from penstock.wire.columns import BufferColumns, Int32s
from penstock.wire.compression import Codec
from penstock.wire.entry import NO_CLAIM, EntryFlag, EntryHeader, PropertyClaim, Stamp
from penstock.wire.kafka.entries import KafkaEntries
from penstock.wire.kafka.framing import varint
from penstock.wire.kafka.header import peek
from penstock.wire.kafka.records import decode
from penstock.wire.kafka.system import KafkaWire
from penstock.wire.property_filter import PropertyCondition
from penstock.wire.protocol import Partition
from tests.consume.batches import stored, values
from tests.wire.kafka.entries import make_entry, read, record
from tests.wire.kafka.messages import Read, Sent

STAMP = Stamp(9, 1, 5, True)
EU, US = PropertyClaim({"region": "eu"}), PropertyClaim({"region": "us"})
BOTH = PropertyClaim({}, {"region": frozenset({"eu", "us"})})
IN_EU = PropertyCondition.parse("region = eu")
LARGE = b"x" * module.TINY_BYTES


def large(first: int, count: int, **more: Any) -> bytes:
    """A batch that is not tiny."""
    return stored(first, [Sent(LARGE, b"%d" % (first + i), time_ms=first + i) for i in range(count)], **more)


def wanted(entries: Sequence[bytes], begin: int = 0, end: int | None = None, condition: Any = None) -> list[Wanted]:
    judge = Judge(KafkaEntries(), condition, ReaderOptions(), ReaderStats(), claims=False)
    found, error = judge.judged(Part(Load(0), Partition("t", 3), [memoryview(one) for one in entries], begin, end, -1))
    assert error is None
    return found


def packer(repack: Repack = "auto", **packing: Any) -> Packer:
    return Packer(KafkaWire(), KafkaEntries(), Packing(3, repack=repack, **packing))


class Packed:
    """What became of some entries."""

    def __init__(
        self, entries: Sequence[bytes], begin: int = 0, end: int | None = None, repack: Repack = "auto", **packing: Any
    ) -> None:
        self.packer = packer(repack, **packing)
        self.consignments = list(self.packer.packed(wanted(entries, begin, end, packing.get("condition"))))

    @property
    def reasons(self) -> list[str | None]:
        return [one.reason.value if one.reason else None for one in self.consignments]

    @property
    def positions(self) -> list[list[int]]:
        return [positions_of(one.stretches) for one in self.consignments]

    @property
    def following(self) -> list[int | None]:
        return [one.next for one in self.consignments]

    def messages(self, partition: int = 3) -> list[Read]:
        """All messages, told by the positions that they had."""
        return [message for one in self.consignments if one.partition == partition for message in messages_of(one)]


def sent_bytes(one: Consignment) -> bytes:
    return b"".join(one.buffer.stamp(STAMP))


def header_of(one: Consignment) -> EntryHeader:
    return peek(sent_bytes(one))


def positions_of(stretches: Stretches) -> list[int]:
    ends = [*stretches.indexes[1:], stretches.total]
    runs = zip(stretches.positions, stretches.indexes, ends, strict=True)
    return [position + i for position, index, end in runs for i in range(end - index)]


def messages_of(one: Consignment) -> list[Read]:
    found = read(decode(sent_bytes(one)))
    assert [message.position for message in found] == list(range(one.count)), "brokers take no batch with holes"
    assert len(found) == one.count == one.stretches.total
    return [
        message._replace(position=position)
        for message, position in zip(found, positions_of(one.stretches), strict=True)
    ]


def held_in(entries: Sequence[bytes], begin: int = 0, end: int = 1 << 62) -> list[Read]:
    """What the entries hold, with the times that their senders gave."""
    undated = [KafkaEntries().undated(one) for one in entries]
    return [message for one in undated for message in read(decode(one)) if begin <= message.position < end]


def thinned(first: int, messages: Sequence[Sent], kept: Sequence[int]) -> bytes:
    """A batch of which compaction has left some messages, each at its position."""
    payload = b"".join(
        record(
            timestamp_delta=varint(messages[i].time_ms),
            offset_delta=varint(i),
            value=varint(len(messages[i].value or b"")) + (messages[i].value or b""),
        )
        for i in kept
    )
    return make_entry(payload, base_offset=first, count=len(kept), last_offset_delta=len(messages) - 1)


# Unopened


def test_an_entry_leaves_as_it_is_but_for_its_header() -> None:
    entry = large(7, 2, codec=Codec.LZ4, stamp=Stamp(4, 0, 11), claim=EU, epoch=3)
    packed = Packed([entry])
    (one,) = packed.consignments
    header, payload = one.buffer.stamp(STAMP)
    assert bytes(payload) == entry[61:]
    found = header_of(one)
    assert (found.producer, found.epoch, found.sequence) == (9, 1, 5)
    assert (found.codec, found.claim) == (Codec.LZ4, EU)
    assert (one.reason, one.partition, one.count, one.size, one.entries) == (None, 3, 2, len(entry), 1)
    assert (one.stretches, one.next, one.time_ms) == (Stretches((7,), (0,), 2), 9, 8)
    assert packed.packer.opened == {}
    assert len(header) == 61


def test_entries_keep_their_order_and_holes_between_them_are_passed() -> None:
    packed = Packed([large(0, 2), large(5, 1), large(9, 2)])
    assert packed.reasons == [None] * 3
    assert packed.following == [2, 6, 11]
    assert packed.positions == [[0, 1], [5], [9, 10]]


def test_a_batch_of_one_that_is_too_large_leaves_as_it_is() -> None:
    """It could not be made smaller, and the target's word on it is better than a guess."""
    assert Packed([large(0, 1)], batch_bytes_max=100).reasons == [None]


def test_log_append_time_is_left_behind_unopened_too() -> None:
    entry = stored(0, [Sent(LARGE, time_ms=5), Sent(LARGE, time_ms=6)], log_time=99)
    packed = Packed([entry])
    assert packed.reasons == [None]
    assert [message.time_ms for message in packed.messages()] == [5, 6]


# Each reason


def test_thinned_entries_are_packed_without_holes() -> None:
    entry = stored(10, [Sent(b"a", time_ms=1), Sent(b"b", time_ms=2)], last=99, codec=Codec.GZIP, claim=EU)
    packed = Packed([entry])
    (one,) = packed.consignments
    assert (packed.reasons, packed.following, one.entries) == (["thinned"], [110 - 10], 1)
    assert packed.messages() == held_in([entry])
    assert (header_of(one).codec, header_of(one).claim) == (Codec.GZIP, EU)


def test_the_holes_in_a_thinned_entry_are_told() -> None:
    """Positions 0, 1, 2 and 3 are left, then 7: what compaction leaves has its own place for each message."""
    whole = [Sent(b"%d" % i, time_ms=i) for i in range(8)]
    entry = thinned(0, whole, [0, 1, 2, 3, 7])
    (one,) = Packed([entry]).consignments
    assert one.stretches == Stretches([0, 7], [0, 4], 5)
    assert [message.value for message in messages_of(one)] == [b"0", b"1", b"2", b"3", b"7"]


@pytest.mark.parametrize(("begin", "end"), [(3, None), (0, 6), (3, 6), (9, 10)])
def test_an_entry_is_cut_where_copying_starts_or_ends_within_it(begin: int, end: int | None) -> None:
    entry = values(0, 10, codec=Codec.SNAPPY, claim=US)
    packed = Packed([entry], begin, end)
    assert packed.reasons == ["cut"]
    assert packed.messages() == held_in([entry], begin, end or 10)
    assert packed.following == [end or 10]
    assert (header_of(packed.consignments[0]).codec, header_of(packed.consignments[0]).claim) == (Codec.SNAPPY, US)


def test_only_the_first_and_the_last_entry_are_cut() -> None:
    entries = [large(0, 4), large(4, 4), large(8, 4)]
    packed = Packed(entries, 2, 9)
    assert packed.reasons == ["cut", None, "cut"]
    assert packed.positions == [[2, 3], [4, 5, 6, 7], [8]]


def regions(*found: str | None) -> list[Sent]:
    return [Sent(LARGE, properties=None if one is None else {"region": one}, time_ms=i) for i, one in enumerate(found)]


def test_a_mixed_entry_is_sifted() -> None:
    entry = stored(0, regions("eu", "us", "eu", None, "eu"), claim=BOTH, codec=Codec.LZ4)
    packed = Packed([entry], condition=IN_EU)
    (one,) = packed.consignments
    assert packed.reasons == ["sifted"]
    assert packed.positions == [[0, 2, 4]]
    assert one.next == 5
    assert header_of(one).claim == BOTH, "what holds for all holds for some"
    assert packed.packer.sifted == 2


def test_entries_that_claim_enough_are_not_opened_for_the_filter() -> None:
    entries = [stored(0, regions("eu", "eu"), claim=EU), stored(2, regions("us"), claim=US)]
    packed = Packed(entries, condition=IN_EU)
    assert packed.reasons == [None]
    assert packed.positions == [[0, 1]]


def test_a_sifted_entry_without_a_match_leaves_nothing() -> None:
    packed = Packed([stored(0, regions("us", None), claim=NO_CLAIM), large(2, 1)], condition=IN_EU)
    assert packed.consignments == []
    assert packed.packer.sifted == 3


def test_what_is_cut_off_is_not_counted_as_sifted() -> None:
    entry = stored(0, regions("us", "us", "eu", "us", "us"))
    packed = Packed([entry], 1, 4, condition=IN_EU)
    assert packed.positions == [[2]]
    assert packed.packer.sifted == 2


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_an_entry_that_is_too_large_becomes_several(codec: Codec) -> None:
    entry = stored(5, [Sent(b"%03d" % i * 10, time_ms=i) for i in range(40)], codec=codec, claim=EU)
    packed = Packed([entry], batch_bytes_max=len(entry) // 2)
    assert set(packed.reasons) == {"too large"}
    assert len(packed.consignments) > 1
    assert all(len(sent_bytes(one)) < len(entry) for one in packed.consignments)
    assert packed.messages() == held_in([entry])
    assert packed.following == [one.stretches.last + 1 for one in packed.consignments]
    assert [one.entries for one in packed.consignments[:-1]] == [0] * (len(packed.consignments) - 1)
    assert packed.consignments[-1].entries == 1
    assert {header_of(one).claim.same["region"] for one in packed.consignments} == {"eu"}


def test_messages_that_are_too_large_leave_alone() -> None:
    packed = Packed([large(0, 3)], batch_bytes_max=100)
    assert packed.positions == [[0], [1], [2]]


def test_tiny_entries_leave_together() -> None:
    entries = [values(3 * i, 3, codec=Codec.LZ4) for i in range(20)]
    packed = Packed(entries)
    (one,) = packed.consignments
    assert (packed.reasons, one.entries, one.count, one.next, one.time_ms) == (["tiny"], 20, 60, 60, 59)
    assert header_of(one).codec is Codec.LZ4
    assert packed.messages() == held_in(entries)
    assert packed.packer.opened == {Reason.TINY: 20}


def test_a_single_tiny_entry_is_not_worth_opening() -> None:
    assert Packed([values(0, 3)]).reasons == [None]
    assert Packed([large(0, 1), values(1, 3), large(4, 1)]).reasons == [None] * 3


def test_a_tiny_entry_that_nothing_can_join_is_not_opened() -> None:
    entries = [stored(i, regions("eu")[:1], claim=[EU, US][i % 2]) for i in range(6)]
    tiny = [stored(i, [Sent(b"", properties={"region": "eu"})], claim=[EU, US][i % 2]) for i in range(6)]
    assert Packed(entries).reasons == [None] * 6
    assert Packed(tiny).reasons == [None] * 6
    assert Packed(tiny, repack="always").reasons == ["tiny"] * 6


@pytest.mark.parametrize(("repack", "reasons"), [("never", [None] * 3), ("always", ["tiny"])])
def test_repacking_is_as_one_wishes(repack: Repack, reasons: list[str | None]) -> None:
    assert Packed([values(0, 3), values(3, 3), values(6, 1)], repack=repack).reasons == reasons
    assert Packed([large(0, 1), large(1, 1), large(2, 1)], repack=repack).reasons == reasons


def test_claims_are_never_put_together_with_other_values() -> None:
    claims = [EU, EU, US, US, NO_CLAIM, NO_CLAIM, BOTH, EU, EU]
    entries = [
        stored(2 * i, [Sent(b"%d" % i, properties={"region": "eu"})] * 2, claim=claim) for i, claim in enumerate(claims)
    ]
    for repack in ("auto", "always"):
        packed = Packed(entries, repack=repack)
        assert [header_of(one).claim for one in packed.consignments] == [EU, US, NO_CLAIM, BOTH, EU]
        assert packed.messages() == held_in(entries)


def test_codecs_are_kept_apart() -> None:
    codecs = [Codec.LZ4, Codec.LZ4, Codec.NONE, Codec.NONE, Codec.ZSTD]
    packed = Packed([values(2 * i, 2, codec=codec) for i, codec in enumerate(codecs)])
    assert [header_of(one).codec for one in packed.consignments] == [Codec.LZ4, Codec.NONE, Codec.ZSTD]
    assert packed.reasons == ["tiny", "tiny", None]


def test_tiny_entries_that_are_many_become_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is just full when the next entries are opened takes none of their messages."""
    monkeypatch.setattr(module, "PACKED_BYTES", 300)
    for size in range(1, 120, 7):
        entries = [stored(2 * i, [Sent(b"%d" % i * size)] * 2) for i in range(12)]
        packed = Packed(entries)
        assert packed.messages() == held_in(entries)
        assert packed.following[-1] == 24
        assert sum(one.entries for one in packed.consignments) == 12


def test_no_run_is_longer_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUN_MAX", 3)
    packed = Packed([values(i, 1) for i in range(8)])
    assert [one.entries for one in packed.consignments] == [3, 3, 2]


def test_log_append_time_gives_way_to_the_senders_times() -> None:
    entries = [
        stored(0, [Sent(b"a", time_ms=5), Sent(b"b", time_ms=6)], log_time=99, codec=Codec.LZ4),
        stored(2, [Sent(b"c", time_ms=7)], codec=Codec.LZ4),
        stored(3, [Sent(b"d", time_ms=8)], log_time=100, codec=Codec.LZ4),
    ]
    packed = Packed(entries)
    (one,) = packed.consignments
    assert [message.time_ms for message in packed.messages()] == [5, 6, 7, 8]
    assert not header_of(one).flags & EntryFlag.LOG_TIME
    assert header_of(one).max_time_ms == 8


# To other partitions


def by_key(partitions: int) -> Any:
    def route(columns: BufferColumns) -> Int32s:
        assert columns.positions is not None
        return (columns.positions % partitions).astype(np.int32)

    return route


def test_messages_are_routed_and_keep_their_order_in_each_partition() -> None:
    entries = [values(0, 7, codec=Codec.LZ4), values(7, 5, codec=Codec.LZ4)]
    packed = Packed(entries, route=by_key(3))
    assert set(packed.reasons) == {"routed"}
    for partition in range(3):
        expected = [message for message in held_in(entries) if message.position % 3 == partition]
        assert packed.messages(partition) == expected
    assert packed.following == [None, None, 7, None, None, 12], "in between there is no position"
    assert [one.entries for one in packed.consignments] == [0, 0, 1, 0, 0, 1]


def test_routed_messages_fill_several_batches_of_one_partition() -> None:
    entry = values(0, 60)
    packed = Packed([entry], route=by_key(2), batch_bytes_max=150)
    assert len(packed.consignments) > 4
    for partition in range(2):
        expected = [message for message in held_in([entry]) if message.position % 2 == partition]
        assert packed.messages(partition) == expected
    assert [one for one in packed.following if one is not None] == [60]
    assert packed.following[-1] == 60


# Smaller and smaller


def test_what_was_refused_as_too_large_becomes_smaller_each_time() -> None:
    one = packer(batch_bytes_max=1000)
    assert one.shrink(800)
    assert one.packing.batch_bytes_max == 400
    assert one.shrink(5000)
    assert one.packing.batch_bytes_max == 200
    sizes = []
    while one.shrink(one.packing.batch_bytes_max):
        sizes.append(one.packing.batch_bytes_max)
    assert sizes == [100, 50, 25, 12, 6, 3, 1]
    assert one.packing.batch_bytes_max == 1


def test_smaller_batches_hold_the_same_messages() -> None:
    entry = values(0, 50)
    one = packer("never")
    counts = []
    for _ in range(12):
        consignments = list(one.packed(wanted([entry])))
        assert [message for each in consignments for message in messages_of(each)] == held_in([entry])
        counts.append(len(consignments))
        one.shrink(max(each.size for each in consignments))
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 50)


# When


def test_entries_are_opened_when_they_are_asked_for() -> None:
    good, bad = values(0, 5, codec=Codec.LZ4), bytearray(values(5, 5, codec=Codec.LZ4))
    one = packer("never")
    found = wanted([good])
    bad[70:90] = bytes(20)
    header = peek(bytes(values(5, 5)))
    found += [Wanted(memoryview(bad), header._replace(codec=Codec.LZ4), 6, 10, found[0].match)]
    consignments = one.packed(found)
    assert next(consignments).next == 5
    with pytest.raises(DecodeError):
        next(consignments)


# Any entries, any cuts, any filter, any limits

VALUE = st.integers(0, 60).map(lambda size: b"v" * size)
REGION = st.sampled_from(["eu", "us", None])


@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    """Entries as a log may have them one after the other, with holes between and within them."""
    entries, at = [], draw(st.integers(0, 3))
    for _ in range(draw(st.integers(1, 8))):
        regions = draw(st.lists(REGION, min_size=1, max_size=6))
        found = [
            Sent(draw(VALUE), properties=None if one is None else {"region": one}, time_ms=at + i)
            for i, one in enumerate(regions)
        ]
        claims = [NO_CLAIM, NO_CLAIM, PropertyClaim({}, {"region": frozenset(regions)})]
        if len(set(regions)) == 1:
            claims.append(PropertyClaim({"region": regions[0]}))
        more: dict[str, Any] = {"codec": draw(st.sampled_from([Codec.NONE, Codec.LZ4]))}
        count = len(found)
        if draw(st.integers(0, 4)) == 0:
            kept = sorted(draw(st.sets(st.integers(0, count - 1), min_size=1)))
            entries.append(thinned(at, [one._replace(properties=None, time_ms=i) for i, one in enumerate(found)], kept))
        else:
            more["log_time"] = draw(st.sampled_from([None, None, 10_000]))
            entries.append(stored(at, found, claim=draw(st.sampled_from(claims)), **more))
        at += count + draw(st.sampled_from([0, 0, 0, 1, 5]))
    return entries


@settings(max_examples=300)
@given(
    entries=logs(),
    begin=st.integers(0, 20),
    length=st.integers(1, 40) | st.none(),
    condition=st.sampled_from([None, IN_EU, PropertyCondition.parse("region in us, eu")]),
    repack=st.sampled_from(["auto", "never", "always"]),
    limits=st.tuples(st.sampled_from([1, 120, 1 << 20]), st.sampled_from([80, 150]), st.sampled_from([90, 1 << 19])),
    partitions=st.sampled_from([1, 1, 3]),
)
def test_any_entries_are_packed_into_the_same_messages(
    entries: list[bytes],
    begin: int,
    length: int | None,
    condition: PropertyCondition | None,
    repack: Repack,
    limits: tuple[int, int, int],
    partitions: int,
) -> None:
    end = None if length is None else begin + length
    route = by_key(partitions) if partitions > 1 else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TINY_BYTES", limits[1])
        patch.setattr(module, "PACKED_BYTES", limits[2])
        packed = Packed(entries, begin, end, repack, condition=condition, batch_bytes_max=limits[0], route=route)
    expected = held_in(entries, begin, 1 << 62 if end is None else end)
    if condition is not None:
        expected = [one for one in expected if condition.matches({k: v.decode() for k, v in one.properties if v})]
    for partition in range(partitions):
        mine = [one for one in expected if partitions == 1 or one.position % partitions == partition]
        assert packed.messages(partition if partitions > 1 else 3) == mine
    check_positions(packed, end)
    for one in packed.consignments:
        claim = header_of(one).claim
        for message in messages_of(one):
            region = dict(message.properties).get("region")
            allowed = claim.values("region")
            assert allowed is None or (None if region is None else region.decode()) in allowed


def check_positions(packed: Packed, end: int | None) -> None:
    """Positions rise, none is passed before its message is sent, and runs tell of each message where it is."""
    whole = [one for one in packed.consignments if one.next is not None]
    assert [one.next for one in whole] == sorted({one.next for one in whole if one.next is not None})
    reached = 0
    for one in packed.consignments:
        assert one.stretches.first >= reached
        if one.next is not None:
            assert one.next > one.stretches.last
            reached = one.next
    assert end is None or reached <= end
    if len({one.partition for one in packed.consignments}) == 1:
        check_map(packed)


def check_map(packed: Packed) -> None:
    runs, told, at = Runs(), PositionMap(), 100
    where: dict[int, int] = {}
    for place, one in enumerate(packed.consignments):
        at += place % 3  # as when a marker lies between
        points = np.array(runs.stored(one.stretches, at), np.int64).reshape(-1, 2)
        told = told.then(points[:, 0], points[:, 1])
        where |= {position: at + index for index, position in enumerate(positions_of(one.stretches))}
        at += one.count
    assert {position: told.target_of(position) for position in where} == where
