"""What was fetched, judged and opened: record batches and entries, exactly those that were asked for."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import ReaderOptions
from penstock.consume import opening
from penstock.consume.feed import Load, Part
from penstock.consume.opening import Entry, Opener
from penstock.consume.shape import SCHEMA, Shape
from penstock.consume.stats import ReaderStats
from penstock.errors import ChecksumError, ConfigError, DecodeError, LimitError
from penstock.wire.compression import Codec
from penstock.wire.entry import PropertyClaim
from penstock.wire.kafka.entries import KafkaEntries
from penstock.wire.property_filter import Match, PropertyCondition
from penstock.wire.protocol import Aborted, Partition
from tests.consume.batches import Row, emptied, marker, rows_of, stored, values
from tests.consume.txn_log import TransactionLog
from tests.wire.kafka.entries import with_fields
from tests.wire.kafka.messages import Sent

T3 = Partition("t", 3)
EU, US = PropertyClaim({"region": "eu"}), PropertyClaim({"region": "us"})
BOTH = PropertyClaim({}, {"region": frozenset({"eu", "us"})})


class Opened:
    """One part, opened."""

    def __init__(
        self,
        entries: list[bytes],
        first: int = 0,
        end: int | None = None,
        *,
        aborted: list[Aborted] | None = None,
        unit: str = "message",
        columns: list[str] | None = None,
        condition: str | None = None,
        **options: Any,
    ) -> None:
        self.stats = ReaderStats()
        shape = Shape("t", columns) if unit == "message" else None
        read = None if condition is None else PropertyCondition.parse(condition)
        opener = Opener(KafkaEntries(), shape, read, ReaderOptions(**options), self.stats)
        views = [memoryview(entry) for entry in entries]
        part = Part(Load(0), T3, views, first, end, -1, aborted=aborted or [])
        self.given: list[Any] = []
        self.error: DecodeError | None = None
        try:
            self.given += opener.given(part)
        except DecodeError as error:
            self.error = error

    @property
    def items(self) -> list[Any]:
        return [given.item for given in self.given]

    @property
    def rows(self) -> list[Row]:
        return [row for item in self.items for row in rows_of(item)]

    @property
    def positions(self) -> list[int]:
        return [row.position for row in self.rows]


def test_messages_come_with_all_their_columns() -> None:
    entry = stored(5, [Sent(b"v", b"k", {"a": "b", "c": None}, 7), Sent(None, None, None, 8)], codec=Codec.ZSTD)
    opened = Opened([entry, stored(7, [Sent(b"", b"")], log_time=99)])
    assert opened.rows == [
        Row(3, 5, b"v", b"k", (("a", b"b"), ("c", None)), 7),
        Row(3, 6, None, None, (), 8),
        Row(3, 7, b"", b"", (), 99),
    ]
    (batch,) = opened.items
    assert batch.schema.equals(SCHEMA)
    batch.validate(full=True)
    assert batch.column("topic").to_pylist() == ["t"] * 3
    assert batch.column("log_time").to_pylist() == [False, False, True]


def test_columns_are_those_asked_for_in_that_order() -> None:
    (batch,) = Opened([values(0, 3)], columns=["value", "partition"]).items
    assert batch.schema.names == ["value", "partition"]
    assert batch.to_pydict() == {"value": [b"0", b"1", b"2"], "partition": [3, 3, 3]}


@pytest.mark.parametrize("columns", [["offset"], [], ["value", "value"], "value"])
def test_columns_that_there_are_not_are_refused(columns: Any) -> None:
    with pytest.raises(ConfigError, match="expected some of topic, partition, position"):
        Shape("t", columns)


@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    codec=st.sampled_from([Codec.NONE, Codec.LZ4]),
    data=st.data(),
)
def test_a_range_is_cut_exactly(counts: list[int], codec: Codec, data: st.DataObject) -> None:
    entries, at = [], 0
    for count in counts:
        entries.append(values(at, count, codec=codec))
        at += count
    first, end = sorted((data.draw(st.integers(0, at)), data.draw(st.integers(0, at))))
    opened = Opened(entries, first, end)
    assert opened.positions == list(range(first, end))
    assert [row.value for row in opened.rows] == [b"%d" % position for position in range(first, end)]
    unopened = Opened(entries, first, end, unit="batch")
    assert [position for item in unopened.items for position in range(item.begin, item.end)] == list(range(first, end))
    assert [given.next for given in unopened.given] == [item.end for item in unopened.items]


def test_positions_behind_each_item_are_told() -> None:
    opened = Opened([values(0, 3), values(3, 2), values(9, 1)])
    assert [given.next for given in opened.given] == [10]
    assert [given.next for given in Opened([values(0, 3), values(3, 5)], 1, 6).given] == [6]


def test_large_entries_are_not_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "AIM_BYTES", 100)
    entries = [stored(i, [Sent(b"x" * 60)]) for i in range(4)]
    assert len(Opened(entries).items) == 4
    monkeypatch.setattr(opening, "AIM_BYTES", 10_000)
    monkeypatch.setattr(opening, "RUN_MAX", 3)
    assert [item.num_rows for item in Opened(entries).items] == [3, 1]


def test_markers_and_emptied_entries_are_not_handed_out() -> None:
    entries = [values(0, 2), marker(2, 5, commit=True), emptied(3, 9), values(10, 1)]
    opened = Opened(entries)
    assert opened.positions == [0, 1, 10]
    assert (opened.stats.entries_control, opened.stats.entries_empty, opened.stats.entries_opened) == (1, 1, 2)
    assert opened.stats.entries == 4
    assert opened.stats.bytes == sum(map(len, entries))
    assert len(Opened(entries, unit="batch").items) == 2


def test_thinned_entries_are_read_as_they_are() -> None:
    opened = Opened([stored(0, [Sent(b"a"), Sent(b"b")], last=99), values(100, 1)], 1, 200)
    assert opened.positions == [1, 100]


def transactions() -> TransactionLog:
    log = TransactionLog()
    for kind, producer in (
        ("write", 1),
        ("write", 2),
        ("plain", 3),
        ("abort", 1),
        ("write", 1),
        ("commit", 2),
        ("commit", 1),
    ):
        log.step(kind, producer, 2)
    return log


def test_aborted_messages_are_read_on_request_only() -> None:
    log = transactions()
    listed = log.aborted_in(log.entries)
    committed = Opened(log.entries, aborted=listed)
    assert committed.positions == [position for first in log.committed for position in (first, first + 1)]
    assert (committed.stats.entries_aborted, committed.stats.messages_aborted) == (1, 2)
    everything = Opened(log.entries, isolation="uncommitted")
    assert everything.positions == [0, 1, 2, 3, 4, 5, 7, 8]
    assert everything.stats.entries_aborted == 0


def test_what_lies_before_the_range_still_tells_what_was_aborted() -> None:
    log = TransactionLog()
    for kind in ("write", "write", "abort", "write", "commit"):
        log.step(kind, 1, 2)
    assert Opened(log.entries, 2, aborted=log.aborted_in(log.entries)).positions == [5, 6]
    assert Opened(log.entries, 5, aborted=log.aborted_in(log.entries)).positions == [5, 6]


def test_entries_are_handed_out_as_they_are_stored() -> None:
    data = stored(5, [Sent(b"v")] * 2, codec=Codec.LZ4, claim=EU)
    (entry,) = Opened([data], unit="batch").items
    assert isinstance(entry, Entry)
    assert (entry.topic, entry.partition, entry.begin, entry.end, entry.match) == ("t", 3, 5, 7, Match.ALL)
    assert (entry.header.count, entry.header.claim) == (2, EU)
    assert entry.data == data


def test_a_filter_skips_entries_by_what_they_claim() -> None:
    entries = [values(0, 2, claim=EU), values(2, 3, claim=US), values(5, 1, claim=EU)]
    opened = Opened(entries, condition="region = us")
    assert opened.positions == [2, 3, 4]
    stats = opened.stats
    assert (stats.entries_filtered, stats.messages_filtered) == (2, 3)
    assert (stats.entries_opened, stats.messages_read, stats.messages_sifted) == (1, 3, 0)


def test_a_mixed_entry_is_judged_message_by_message() -> None:
    def regions(first: int, *names: str, claim: PropertyClaim = BOTH) -> bytes:
        return stored(first, [Sent(b"x", properties={"region": name}) for name in names], claim=claim)

    entries = [
        regions(0, "eu", "us", "eu"),
        regions(3, "us", "us"),
        stored(5, [Sent(b"x"), Sent(b"x", properties={"region": "us"})]),
        stored(7, [Sent(b"x", properties={"region": "eu"})]),
    ]
    opened = Opened(entries, condition="region = us")
    assert opened.positions == [1, 3, 4, 6]
    stats = opened.stats
    assert (stats.entries_opened, stats.messages_read, stats.messages_sifted) == (4, 4, 4)
    assert stats.entries_filtered == 0
    unopened = Opened(entries, condition="region = us", unit="batch")
    assert [item.match for item in unopened.items] == [Match.MIXED] * 4
    cut = Opened(entries, 1, 6, condition="region = us")
    assert (cut.positions, cut.stats.messages_sifted) == ([1, 3, 4], 2)


def test_a_value_that_the_policy_does_not_list_counts_as_absent() -> None:
    claim = PropertyClaim({"region": None}, {"kind": frozenset({"a", "b"})})
    messages = [Sent(b"x", properties={"region": "mars", "kind": kind}) for kind in "ab"]
    assert Opened([stored(0, messages, claim=claim)], condition="region = mars").positions == []
    assert Opened([stored(0, messages, claim=claim)], condition="region is absent; kind = a").positions == [0]


@pytest.mark.parametrize("unit", ["message", "batch"])
def test_a_damaged_entry_is_an_error_behind_those_before_it(unit: str) -> None:
    entries = [values(0, 2), values(2, 2), with_fields(values(4, 2), crc=1), values(6, 2)]
    opened = Opened(entries, unit=unit)
    assert sum(item.num_rows if unit == "message" else item.header.count for item in opened.items) == 4
    assert isinstance(opened.error, ChecksumError)
    assert "t-3, entry at position 4 or behind it: crc at byte 17" in str(opened.error)
    assert Opened(entries, unit=unit, verify_checksums=False).error is None


def test_an_entry_that_unpacks_to_too_much_is_an_error_of_its_own() -> None:
    entries = [values(0, 2), stored(2, [Sent(b"x" * 5000)], codec=Codec.LZ4), values(3, 2)]
    opened = Opened(entries, decompressed_bytes_max=1000)
    assert opened.positions == [0, 1]
    assert isinstance(opened.error, LimitError)
    assert "t-3, entry at position 2 or behind it" in str(opened.error)


def test_nothing_is_handed_out_of_nothing() -> None:
    assert Opened([]).items == []
    assert Opened([marker(0, 1, commit=True)]).items == []
    assert Opened([values(0, 2)], 2).items == []
    assert Opened([values(0, 2, claim=EU)], condition="region = us").items == []


def test_record_batches_of_one_reader_make_a_table() -> None:
    batches = Opened([values(0, 2)]).items + Opened([values(2, 2, codec=Codec.GZIP)]).items
    table = pa.Table.from_batches(batches)
    assert table.column("position").to_pylist() == [0, 1, 2, 3]
    table.validate(full=True)
