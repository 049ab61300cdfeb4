"""What a partition makes of entries that carry a producer's id."""

from __future__ import annotations

import pytest

from penstock.broker.aborted import Aborted, AbortedTransactions
from penstock.broker.log.partition import Place
from penstock.broker.producer_state import Producer, Remembered, pack, unpack
from penstock.broker.producers import EXPIRY_MS, REMEMBERED, SEQUENCES, PartitionProducers
from penstock.broker.refusals import Refusal, Refused
from penstock.errors import DecodeError
from penstock.wire.compression import Codec
from penstock.wire.entry import NO_CLAIM, EntryFlag, EntryHeader

TIME = 1_700_000_000_000


def header(
    producer: int | str | None = 7,
    epoch: int = 0,
    sequence: int = 0,
    count: int = 1,
    flags: EntryFlag = EntryFlag.NONE,
) -> EntryHeader:
    return EntryHeader(count, 100, Codec.NONE, 0, count - 1, None, 5, producer, epoch, sequence, flags, NO_CLAIM)


class Log:
    """A partition that numbers entries and tells its producers."""

    def __init__(self, producers: PartitionProducers | None = None) -> None:
        self.producers = PartitionProducers("topic-0") if producers is None else producers
        self.end = 0
        self.history: list[tuple[EntryHeader, Place, bool]] = []

    def send(
        self, producer: int | None = 7, epoch: int = 0, sequence: int = 0, count: int = 1, *, within: bool = False
    ) -> Place:
        """The way of an entry, as a partition goes it."""
        flags = EntryFlag.TRANSACTIONAL if within else EntryFlag.NONE
        entry = header(producer, epoch, sequence, count, flags)
        place = self.producers.check(entry)
        if place is None:
            place = self.place(entry)
            self.producers.stored(entry, place, TIME, "name")
        return place

    def mark(self, producer: int = 7, epoch: int = 0, *, commit: bool = True, held: bool = False) -> Place:
        entry = header(producer, epoch, -1, 1, EntryFlag.TRANSACTIONAL | EntryFlag.CONTROL)
        place = self.place(entry, commit)
        self.producers.ended(entry, place, commit, TIME, held=held)
        return place

    def place(self, entry: EntryHeader, commit: bool = False) -> Place:
        place = Place(self.end, self.end + entry.count - 1)
        self.end += entry.count
        self.history.append((entry, place, commit))
        return place

    def settle(self) -> None:
        self.producers.settle(self.end)

    def cut(self, end: int) -> bool:
        self.history = [row for row in self.history if row[1].first < end]
        self.end = end
        return self.producers.revert(end)

    def stable(self) -> int:
        return self.producers.last_stable(self.end)


def refusal(log: Log, *args: int, within: bool = False) -> Refusal:
    with pytest.raises(Refused) as refused:
        log.send(*args, within=within)
    return refused.value.reason


def test_entries_without_a_producer_are_not_judged() -> None:
    log = Log()
    assert log.send(None) == (0, 0)
    assert log.send(None) == (1, 1)
    assert log.producers.check(header("by name", 0, 3)) is None
    log.producers.stored(header("by name", 0, 3), Place(2, 2), TIME)
    assert len(log.producers) == 0


def test_entries_in_order_are_stored() -> None:
    log = Log()
    assert [log.send(7, 0, 0, 3), log.send(7, 0, 3, 2), log.send(7, 0, 5)] == [(0, 2), (3, 4), (5, 5)]


@pytest.mark.parametrize("sequence", [0, 5, SEQUENCES - 1])
def test_an_unknown_producer_may_begin_anywhere(sequence: int) -> None:
    log = Log()
    assert log.send(7, 3, sequence) == (0, 0)
    assert refusal(log, 7, 3, (sequence + 2) % SEQUENCES) is Refusal.OUT_OF_ORDER


def test_who_renews_its_epoch_with_each_transaction_begins_with_zero() -> None:
    producers = PartitionProducers()
    with pytest.raises(Refused, match="nothing was stored before it") as refused:
        producers.check(header(sequence=5, flags=EntryFlag.TRANSACTIONAL), from_zero=True)
    assert refused.value.reason is Refusal.OUT_OF_ORDER
    assert producers.check(header(sequence=0, flags=EntryFlag.TRANSACTIONAL), from_zero=True) is None
    assert producers.check(header(sequence=5), from_zero=True) is None


@pytest.mark.parametrize(("epoch", "sequence"), [(0, -1), (-1, 0), (-1, -1)])
def test_a_producer_id_needs_an_epoch_and_a_sequence(epoch: int, sequence: int) -> None:
    assert refusal(Log(), 7, epoch, sequence) is Refusal.BAD_ENTRY


def test_the_last_entries_are_recognised_and_not_stored_again() -> None:
    log = Log()
    places = [log.send(7, 0, 2 * index, 2) for index in range(9)]
    again = [log.send(7, 0, 2 * index, 2) for index in range(9 - REMEMBERED, 9)]
    assert again == places[-REMEMBERED:]
    assert log.end == 18


def test_an_older_entry_is_out_of_order() -> None:
    log = Log()
    for index in range(6):
        log.send(7, 0, index)
    assert refusal(log, 7, 0, 0) is Refusal.OUT_OF_ORDER


@pytest.mark.parametrize(("sequence", "count"), [(0, 2), (0, 4), (1, 2), (2, 1)])
def test_a_part_of_an_entry_is_no_duplicate(sequence: int, count: int) -> None:
    log = Log()
    log.send(7, 0, 0, 3)
    assert refusal(log, 7, 0, sequence, count) is Refusal.OUT_OF_ORDER


@pytest.mark.parametrize("sequence", [4, 5, 100, SEQUENCES - 1])
def test_a_gap_is_refused(sequence: int) -> None:
    log = Log()
    log.send(7, 0, 0, 3)
    assert refusal(log, 7, 0, sequence) is Refusal.OUT_OF_ORDER
    assert log.send(7, 0, 3) == (3, 3)


def test_sequences_go_from_the_largest_to_zero() -> None:
    log = Log()
    log.send(7, 0, SEQUENCES - 4, 2)
    assert log.send(7, 0, SEQUENCES - 2, 5) == (2, 6)
    assert log.send(7, 0, SEQUENCES - 2, 5) == (2, 6)
    assert refusal(log, 7, 0, 2) is Refusal.OUT_OF_ORDER
    assert log.send(7, 0, 3) == (7, 7)


def test_a_lower_epoch_is_stale() -> None:
    log = Log()
    log.send(7, 2, 0)
    assert refusal(log, 7, 1, 0) is Refusal.STALE_EPOCH
    assert refusal(log, 7, 1, 1) is Refusal.STALE_EPOCH


def test_a_higher_epoch_begins_anew() -> None:
    log = Log()
    log.send(7, 0, 0)
    assert refusal(log, 7, 1, 1) is Refusal.OUT_OF_ORDER
    assert log.send(7, 1, 0) == (1, 1)
    assert log.send(7, 1, 0) == (1, 1)
    assert refusal(log, 7, 0, 0) is Refusal.STALE_EPOCH


def test_producers_do_not_meet() -> None:
    log = Log()
    assert [log.send(7), log.send(8), log.send(7, 0, 1), log.send(8)] == [(0, 0), (1, 1), (2, 2), (1, 1)]


def test_within_a_transaction_nothing_is_taken_from_outside_of_it() -> None:
    log = Log()
    log.send(within=True)
    assert refusal(log, 7, 0, 1) is Refusal.BAD_TRANSACTION_STATE
    assert refusal(log, 7, 1, 0) is Refusal.BAD_TRANSACTION_STATE
    assert log.send(7, 0, 0) == (0, 0)  # it is there: nothing is taken
    log.mark()
    assert log.send(7, 0, 1) == (2, 2)


def test_the_last_stable_position_lies_before_every_open_transaction() -> None:
    log = Log()
    log.send(None, count=3)
    assert log.stable() == 3
    log.send(7, within=True)
    log.send(8, within=True)
    log.send(7, 0, 1, within=True)
    assert log.stable() == 3
    log.mark(7)
    log.settle()
    assert log.stable() == 4
    log.mark(8)
    log.settle()
    assert log.stable() == log.end


def test_a_transaction_is_open_until_its_marker_is_durable() -> None:
    log = Log()
    log.send(within=True)
    log.settle()
    marker = log.mark()
    assert log.stable() == 0
    log.producers.settle(marker.last)
    assert log.stable() == 0
    log.producers.settle(marker.last + 1)
    assert log.stable() == 2


def test_a_transaction_is_open_until_it_is_released() -> None:
    log = Log()
    log.send(7, within=True)
    log.send(8, within=True)
    log.mark(7, held=True)
    log.mark(8)
    log.settle()
    assert log.stable() == 0
    log.producers.release(8)
    assert log.stable() == 0
    log.producers.release(7)
    assert log.stable() == log.end


def test_it_may_be_released_before_it_is_durable() -> None:
    log = Log()
    log.send(within=True)
    log.mark(held=True)
    log.producers.release(7)
    assert log.stable() == 0
    log.settle()
    assert log.stable() == 2


def test_the_last_stable_position_is_no_lower_than_the_start_and_no_higher_than_the_end() -> None:
    log = Log()
    log.send(within=True)
    log.send(None, count=9)
    log.producers.delete_before(5)
    assert log.producers.last_stable(10) == 5
    assert log.producers.last_stable(3) == 3
    other = Log()
    other.send(None, count=9)
    other.send(within=True)
    assert other.producers.last_stable(4) == 4


def test_a_marker_gives_the_producer_its_epoch() -> None:
    log = Log()
    log.send(7, 4, 0, within=True)
    log.mark(7, 5)
    assert refusal(log, 7, 4, 1, within=True) is Refusal.STALE_EPOCH
    assert refusal(log, 7, 5, 1, within=True) is Refusal.OUT_OF_ORDER
    assert log.send(7, 5, 0, within=True) == (2, 2)


def test_a_marker_of_the_same_epoch_lets_sequences_go_on() -> None:
    log = Log()
    log.send(7, 4, 0, 2, within=True)
    log.mark(7, 4)
    assert log.send(7, 4, 0, 2, within=True) == (0, 1)
    assert log.stable() == 0  # the marker is not durable
    log.settle()
    assert log.stable() == 3
    assert log.send(7, 4, 2, within=True) == (3, 3)
    assert log.stable() == 3


def test_a_marker_for_a_producer_that_stored_nothing_fences_older_ones() -> None:
    log = Log()
    log.mark(7, 3)
    assert refusal(log, 7, 2, 0) is Refusal.STALE_EPOCH
    assert refusal(log, 7, 3, 4) is Refusal.OUT_OF_ORDER
    assert log.send(7, 3, 0) == (1, 1)
    assert log.stable() == log.end


def test_aborted_transactions_are_told_where_they_touch_a_range() -> None:
    log = Log()
    log.send(7, within=True)  # 0
    log.send(8, within=True)  # 1
    log.mark(8, commit=False)  # 2
    log.send(8, 0, 1, within=True)  # 3
    log.mark(8)  # 4
    log.mark(7, commit=False)  # 5
    log.send(9, within=True)  # 6
    log.mark(9, commit=False)  # 7
    first, second, third = Aborted(8, 1, 2), Aborted(7, 0, 5), Aborted(9, 6, 7)
    assert log.producers.aborted(0, 8) == [first, second, third]
    assert log.producers.aborted(0, 1) == [second]
    assert log.producers.aborted(2, 3) == [first, second]
    assert log.producers.aborted(3, 6) == [second]
    assert log.producers.aborted(6, 7) == [third]
    assert log.producers.aborted(8, 9) == []


def test_a_marker_without_entries_aborts_nothing() -> None:
    log = Log()
    log.mark(commit=False)
    assert log.producers.aborted(0, 9) == []


def test_aborted_transactions_go_with_their_markers() -> None:
    log = Log()
    for producer in range(3):
        log.send(producer, within=True)
        log.mark(producer, commit=False)
    log.producers.delete_before(2)
    assert [aborted.producer for aborted in log.producers.aborted(0, 9)] == [1, 2]
    log.producers.delete_before(5)
    assert [aborted.producer for aborted in log.producers.aborted(0, 9)] == [2]


def test_many_aborted_transactions_are_told_without_looking_at_all() -> None:
    aborted = AbortedTransactions()
    for index in range(1000):
        aborted.add(Aborted(index, 2 * index, 2 * index + 1), 2 * index + 2)
    assert aborted.between(500, 504) == [Aborted(250, 500, 501), Aborted(251, 502, 503)]
    assert len(aborted.columns(10)[0]) == 10


# Entries that never become durable


def test_entries_that_were_cut_can_be_sent_again() -> None:
    log = Log()
    log.send(7, 0, 0)
    log.settle()
    log.send(7, 0, 1)
    log.send(7, 0, 2)
    log.send(8, 0, 0)
    assert log.cut(1)
    assert 8 not in log.producers
    assert log.send(7, 0, 0) == (0, 0)
    assert refusal(log, 7, 0, 2) is Refusal.OUT_OF_ORDER
    assert log.send(7, 0, 1) == (1, 1)


def test_a_cut_may_leave_the_first_of_those_in_flight() -> None:
    log = Log()
    log.send(7, 0, 0)
    log.send(7, 0, 1)
    assert log.cut(1)
    assert log.send(7, 0, 1) == (1, 1)


def test_a_cut_takes_back_what_an_entry_had_pushed_out_of_memory() -> None:
    log = Log()
    for sequence in range(REMEMBERED):
        log.send(7, 0, sequence)
    log.settle()
    log.send(7, 0, REMEMBERED)
    assert refusal(log, 7, 0, 0) is Refusal.OUT_OF_ORDER
    assert log.cut(REMEMBERED)
    assert log.send(7, 0, 0) == (0, 0)


def test_a_cut_takes_back_an_epoch() -> None:
    log = Log()
    log.send(7, 0, 0)
    log.settle()
    log.send(7, 1, 0)
    assert log.cut(1)
    assert log.send(7, 0, 1) == (1, 1)


def test_a_cut_takes_back_the_beginning_of_a_transaction() -> None:
    log = Log()
    log.send(7, 0, 0)
    log.settle()
    log.send(7, 0, 1, within=True)
    assert log.stable() == 1
    assert log.cut(1)
    assert log.stable() == 1
    assert log.send(7, 0, 1) == (1, 1)
    assert log.stable() == 2


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_a_cut_takes_back_the_end_of_a_transaction(commit: bool, held: bool) -> None:
    log = Log()
    log.send(7, within=True)
    log.send(8, within=True)
    log.settle()
    log.mark(7, 1, commit=commit, held=held)
    assert log.cut(2)
    assert log.producers.aborted(0, 9) == []
    assert log.stable() == 0
    assert log.send(7, 0, 1, within=True) == (2, 2)
    log.mark(7, 1, commit=False)
    log.settle()
    assert log.stable() == 1
    assert log.producers.aborted(0, 9) == [Aborted(7, 0, 3)]


def test_what_is_settled_is_not_taken_back() -> None:
    log = Log()
    log.send(7, 0, 0)
    log.settle()
    assert not log.cut(0)


# Time


def test_idle_producers_are_forgotten() -> None:
    log = Log()
    log.send(7)
    log.settle()
    assert log.producers.expire(TIME + EXPIRY_MS - 1) == 0
    assert log.producers.expire(TIME + EXPIRY_MS) == 1
    assert log.send(7, 0, 5) == (1, 1)


def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    log = Log()
    log.send(within=True)
    log.settle()
    assert log.producers.expire(TIME + 2 * EXPIRY_MS) == 0
    assert refusal(log, 7, 0, 5, within=True) is Refusal.OUT_OF_ORDER


def test_a_producer_whose_entry_is_not_durable_is_not_forgotten() -> None:
    log = Log()
    log.send()
    assert log.producers.expire(TIME + EXPIRY_MS) == 0
    assert log.cut(0)
    assert len(log.producers) == 0


def test_a_clock_that_goes_back_forgets_nobody() -> None:
    log = Log()
    log.producers.expire(TIME + EXPIRY_MS)
    log.send(7)
    log.settle()
    assert log.producers.expire(TIME) == 0
    assert log.producers.expire(TIME + 2 * EXPIRY_MS - 1) == 0
    assert log.producers.expire(TIME + 2 * EXPIRY_MS) == 1


# What is written down


def restored(log: Log) -> Log:
    """The same log after a restart: the snapshot, and the headers behind it."""
    position, state = log.producers.snapshot()
    other = Log()
    other.producers.restore(position, state)
    for entry, place, commit in log.history:
        if place.first >= position:
            other.producers.replay(entry, place, TIME, commit)
    other.history, other.end = list(log.history), log.end
    return other


def test_a_snapshot_holds_only_what_is_durable() -> None:
    log = Log()
    log.send(7, 0, 0, within=True)
    log.mark(7, 0, commit=False)
    log.settle()
    before = log.producers.snapshot()
    log.send(7, 0, 1, within=True)
    log.mark(7, 1, commit=False)
    log.send(8)
    assert log.producers.snapshot() == before
    log.settle()
    assert log.producers.snapshot() != before


def test_all_is_known_again_after_a_restart() -> None:
    log = Log()
    for sequence in range(7):
        log.send(7, 2, sequence)
    log.send(8, 0, 0, within=True)
    log.send(9, 0, 0, within=True)
    log.mark(9, 1, commit=False)
    log.settle()
    log.send(7, 2, 7)
    log.send(10, 0, 0, within=True)
    log.mark(8, 0, commit=False)
    log.settle()
    again = restored(log)
    assert list(again.producers.describe()) == list(log.producers.describe())
    assert again.stable() == log.stable() == 11
    assert again.producers.aborted(0, 99) == log.producers.aborted(0, 99) == [Aborted(9, 8, 9), Aborted(8, 7, 12)]
    assert again.producers.snapshot() == log.producers.snapshot()


def test_everything_follows_from_the_log_alone() -> None:
    log = Log()
    log.send(7, 2, 0)
    log.send(8, 0, 0, within=True)
    log.mark(8, 1, commit=False)
    log.send(9, 0, 0, within=True)
    log.settle()
    other = PartitionProducers()
    for entry, place, commit in log.history:
        other.replay(entry, place, TIME, commit)
    bare = [(producer, known._replace(name="")) for producer, known in log.producers.describe()]
    assert list(other.describe()) == bare
    assert other.last_stable(log.end) == log.stable()
    assert other.aborted(0, 9) == log.producers.aborted(0, 9)


def test_names_last() -> None:
    log = Log()
    log.send(7)
    log.settle()
    log.send(7, 0, 1)
    known = restored(log).producers.get(7)
    assert known is not None
    assert known.name == "name"


def test_packing_keeps_everything() -> None:
    producers = {
        7: Producer(3, (Remembered(SEQUENCES - 1, 0, Place(5, 6)),), TIME, "näme", 5, marked=True),
        1 << 40: Producer(0, (), TIME, "", 0),
        8: Producer(32767, tuple(Remembered(n, n, Place(n, n)) for n in range(5)), 0, "x" * 300),
    }
    columns = [(1, 2), (3, 4), (5, 6), (7, 8)]
    assert unpack(pack(producers, columns)) == (producers, columns)


def test_what_was_not_packed_is_refused() -> None:
    state = pack({7: Producer(3, (Remembered(0, 0, Place(5, 6)),), TIME, "name", 5)}, [(1,), (2,), (3,), (4,)])
    for end in range(len(state)):
        with pytest.raises(DecodeError):
            unpack(state[:end])
    for damaged in (state + b"\0", b"\x02" + state[1:]):
        with pytest.raises(DecodeError):
            unpack(damaged)


def test_its_state_can_be_read() -> None:
    log = Log()
    log.send()
    assert repr(log.producers) == "<PartitionProducers of topic-0, 1 known, 1 not settled>"
