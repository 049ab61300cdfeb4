"""Durable cursors: how far a reader has come in a partition, and what it has acknowledged beyond that.

A cursor has a *position*: everything below it is acknowledged; and ranges of positions behind it that were acknowledged
one by one. When a range begins at the position, the position moves behind it. An acknowledgement holds in memory at
once and is told when it is durable; the cursors that changed in one turn of the loop are written together. One that was
not told may be forgotten in a crash, and its messages are read again.

A cursor never holds more ranges than the broker allows: an acknowledgement that would need one more is refused and
changes nothing, because to forget one silently would mean to read it again, unasked.

Retention may drop entries that a cursor has not acknowledged (unless the topic's `keep_unread` is set); the cursor goes
on at the log's start then. Runs on: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias
from uuid import UUID

from penstock.broker.log.partition import Backlog, PartitionLog
from penstock.broker.names import TEXT_CHARS_MAX
from penstock.broker.ranges import Ranges
from penstock.broker.refusals import Refusal, Refused, refusal_of
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import CursorRow, Done, Store, drop_cursors, put_cursors
from penstock.broker.topics import Topic, Topics
from penstock.errors import DecodeError, StorageDamagedError

Key: TypeAlias = tuple[UUID, int, str]
CursorDone: TypeAlias = "Callable[[Cursor | Exception], None]"


class Cursor:
    """One cursor. Its fields are for reading; `Cursors` changes them."""

    __slots__ = ("_whole", "changed_ms", "gone", "name", "partition", "position", "ranges", "topic")

    def __init__(self, topic: Topic, row: CursorRow, ranges: Ranges) -> None:
        self.topic: Final = topic
        self.partition: Final = row.partition
        self.name: Final = row.name
        self.position = row.position
        """Everything below it is acknowledged."""
        self.ranges: Final = ranges
        """What is acknowledged behind it."""
        self.changed_ms = row.changed_ms
        self.gone = False
        self._whole: dict[tuple[int, int], int] = {}

    def __repr__(self) -> str:
        return f"<Cursor {self.name} at {self.position}, {len(self.ranges)} ranges behind it>"

    @property
    def key(self) -> Key:
        """Topic, partition and name."""
        return self.topic.id, self.partition, self.name

    @property
    def row(self) -> CursorRow:
        """The cursor as the store knows it."""
        return CursorRow(*self.key, self.position, self.ranges.encode(self.position), self.changed_ms)

    def is_acknowledged(self, position: int) -> bool:
        """Whether this message need not be read again."""
        return position < self.position or position in self.ranges

    def next_unread(self, position: int) -> int:
        """The first position from this one on that is not acknowledged."""
        return self.ranges.after(max(position, self.position))

    def backlog(self, log: PartitionLog) -> Backlog:
        """What is left to read: messages exactly, entries and bytes of entries with any message left."""
        start = max(self.position, log.start)
        if start >= log.visible:
            return Backlog(0, 0, 0)
        left = log.backlog(start)
        entries, messages, size = left.entries, left.messages, left.bytes
        whole: dict[tuple[int, int], int] = {}
        for span in self.ranges:
            first, after = max(span[0], start), min(span[1], log.visible)
            if first < after:
                messages -= after - first
                known = self._whole.get((first, after))
                whole[first, after] = _whole_entries(log, first, after) if known is None else known
        self._whole = whole
        return Backlog(entries - sum(whole.values()), messages, size)


class Cursors:
    """All durable cursors of a broker."""

    def __init__(
        self, store: Store, topics: Topics, settings: BrokerSettings, log_of: Callable[[Topic, int], PartitionLog]
    ) -> None:
        """`log_of` gives the log of a partition; Refused when there is none."""
        self._store = store
        self._log_of = log_of
        self._ranges_max = settings.cursor_ranges_max
        self._cursors_max = settings.cursors_max
        self._by_partition: dict[tuple[UUID, int], dict[str, Cursor]] = {}
        self._changed: dict[Cursor, list[Done]] = {}
        self._failed: set[Cursor] = set()
        for row in store.cursors():
            topic = topics.by_id(row.topic_id)
            if topic is not None:
                self._add(Cursor(topic, row, _ranges_of(row)))

    def __repr__(self) -> str:
        return f"<Cursors {sum(map(len, self._by_partition.values()))}, {len(self._changed)} to be written>"

    # Finding

    def of(self, topic: Topic, number: int) -> Iterator[Cursor]:
        """The cursors of a partition."""
        return iter(list(self._by_partition.get((topic.id, number), {}).values()))

    def get(self, topic: Topic, number: int, name: str) -> Cursor:
        """A cursor; Refused when there is none of that name."""
        cursor = self._by_partition.get((topic.id, number), {}).get(name)
        if cursor is None:
            raise Refused(Refusal.UNKNOWN_CURSOR, f"there is no cursor {name} in {topic.name}-{number}")
        return cursor

    def oldest(self, topic: Topic, number: int) -> int | None:
        """The lowest position of a partition's cursors; None without any."""
        return min((cursor.position for cursor in self.of(topic, number)), default=None)

    # Changing

    def create(self, topic: Topic, number: int, name: str, position: int | None, now_ms: int, done: CursorDone) -> None:
        """Make a cursor at a position within the log; None: at the end of what is visible."""
        log = self._log_of(topic, number)
        held = self._by_partition.get((topic.id, number), {})
        if not 1 <= len(name) <= TEXT_CHARS_MAX or not name.isprintable():
            raise Refused(Refusal.BAD_CURSOR_NAME, f"a cursor's name is printable, of 1 to {TEXT_CHARS_MAX} characters")
        if name in held:
            raise Refused(Refusal.CURSOR_EXISTS, f"there is a cursor {name} in {topic.name}-{number} already")
        if len(held) >= self._cursors_max:
            raise Refused(Refusal.NOT_ALLOWED, f"{topic.name}-{number} has {len(held)} cursors, and takes no more")
        at = log.visible if position is None else _within(log, position)
        cursor = Cursor(topic, CursorRow(topic.id, number, name, at, b"", now_ms), Ranges())
        self._add(cursor)
        row = cursor.row
        self._store.write(lambda db: put_cursors(db, (row,)), lambda error: self._created(cursor, done, error))

    def acknowledge(
        self, cursor: Cursor, ranges: Iterable[tuple[int, int]], now_ms: int, done: Done | None = None
    ) -> None:
        """These positions are read, each range from its first to before its second. All of them, or Refused."""
        log = self._log(cursor)
        wanted: list[tuple[int, int]] = []
        for first, after in ranges:
            if not 0 <= first < after <= log.visible:
                text = f"{log.name} can be acknowledged up to {log.visible}, not from {first} to {after}"
                raise Refused(Refusal.POSITION_OUT_OF_RANGE, text)
            if after > cursor.position:
                wanted.append((max(first, cursor.position), after))
        self._check_room(cursor, wanted)
        for first, after in wanted:
            cursor.ranges.add(first, after)
        cursor.position = cursor.ranges.drop_before(cursor.position)
        self._note(cursor, now_ms, done)

    def acknowledge_before(self, cursor: Cursor, position: int, now_ms: int, done: Done | None = None) -> None:
        """Everything below this position is read; nothing changes if that is known already."""
        log = self._log(cursor)
        if position > log.visible:
            text = f"{log.name} can be acknowledged up to {log.visible}, not to {position}"
            raise Refused(Refusal.POSITION_OUT_OF_RANGE, text)
        if position > cursor.position:
            cursor.position = cursor.ranges.drop_before(position)
        self._note(cursor, now_ms, done)

    def reset(self, cursor: Cursor, position: int, now_ms: int, done: Done | None = None) -> None:
        """Go to a position within the log, forward or back; what was acknowledged behind it is forgotten."""
        cursor.position = _within(self._log(cursor), position)
        cursor.ranges.clear()
        self._note(cursor, now_ms, done)

    def reset_to_time(self, cursor: Cursor, time_ms: int, now_ms: int, done: Done | None = None) -> None:
        """Go to the first entry that reaches this time; to the end of what is visible if none does."""
        log = self._log(cursor)
        found = log.seek_time(time_ms)
        self.reset(cursor, log.visible if found is None else found[0], now_ms, done)

    def delete(self, cursor: Cursor, done: Done | None = None) -> None:
        """Forget a cursor."""
        self._check_alive(cursor)
        self._remove(cursor)
        self._store.write(lambda db: drop_cursors(db, (cursor.key,)), lambda error: self._deleted(cursor, done, error))

    def drop_topic(self, topic: Topic) -> None:
        """The topic is deleted, and the store has forgotten its cursors."""
        for number in range(topic.partitions):
            for cursor in self.of(topic, number):
                self._remove(cursor)

    # Writing

    def flush(self) -> None:
        """Hand to the store what was changed since the last time."""
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        rows = [cursor.row for cursor in changed if not cursor.gone]
        rows += [cursor.row for cursor in self._failed - changed.keys()]
        self._failed.clear()
        self._store.write(lambda db: put_cursors(db, rows), lambda error: self._written(changed, error))

    def retry(self) -> None:
        """Hand to the store again what could not be written."""
        for cursor in self._failed:
            self._changed.setdefault(cursor, [])
        self.flush()

    def _written(self, changed: dict[Cursor, list[Done]], error: Exception | None) -> None:
        outcome = None if error is None else refusal_of(error)
        if outcome is not None:
            self._failed.update(cursor for cursor in changed if not cursor.gone)
        for dones in changed.values():
            for done in dones:
                done(outcome)

    def _created(self, cursor: Cursor, done: CursorDone, error: Exception | None) -> None:
        if error is not None:
            self._remove(cursor)
        done(cursor if error is None else refusal_of(error))

    def _deleted(self, cursor: Cursor, done: Done | None, error: Exception | None) -> None:
        if error is not None and cursor.name not in self._by_partition.get(cursor.key[:2], {}):
            cursor.gone = False
            self._add(cursor)
        if done is not None:
            done(None if error is None else refusal_of(error))

    # Pieces

    def _add(self, cursor: Cursor) -> None:
        self._by_partition.setdefault((cursor.topic.id, cursor.partition), {})[cursor.name] = cursor

    def _remove(self, cursor: Cursor) -> None:
        held = self._by_partition.get((cursor.topic.id, cursor.partition), {})
        if held.get(cursor.name) is cursor:
            del held[cursor.name]
        cursor.gone = True
        self._failed.discard(cursor)

    def _note(self, cursor: Cursor, now_ms: int, done: Done | None) -> None:
        cursor.changed_ms = now_ms
        dones = self._changed.setdefault(cursor, [])
        if done is not None:
            dones.append(done)

    def _check_room(self, cursor: Cursor, wanted: list[tuple[int, int]]) -> None:
        if len(cursor.ranges) + len(wanted) <= self._ranges_max:
            return
        tried = cursor.ranges.copy()
        for first, after in wanted:
            tried.add(first, after)
        tried.drop_before(cursor.position)
        if len(tried) > self._ranges_max:
            text = f"{cursor.name} would have {len(tried)} acknowledged ranges, and {self._ranges_max} are allowed"
            raise Refused(Refusal.TOO_MANY_RANGES, text)

    def _log(self, cursor: Cursor) -> PartitionLog:
        self._check_alive(cursor)
        return self._log_of(cursor.topic, cursor.partition)

    def _check_alive(self, cursor: Cursor) -> None:
        if cursor.gone:
            raise Refused(Refusal.UNKNOWN_CURSOR, f"the cursor {cursor.name} is gone")


def _ranges_of(row: CursorRow) -> Ranges:
    try:
        return Ranges.decode(row.ranges, row.position)
    except DecodeError as error:
        raise StorageDamagedError(f"the cursor {row.name} cannot be read: {error}") from error


def _within(log: PartitionLog, position: int) -> int:
    if not log.start <= position <= log.visible:
        text = f"{log.name} reaches from {log.start} to {log.visible}, and {position} is outside"
        raise Refused(Refusal.POSITION_OUT_OF_RANGE, text)
    return position


def _whole_entries(log: PartitionLog, first: int, after: int) -> int:
    """How many entries lie between these positions with all of their messages."""
    holding = log.read(first, 0)
    assert holding is not None
    holding.release()
    begun_before = holding.first < first
    ending_later = 0 if after >= log.visible else log.backlog(after).entries
    return max(log.backlog(first).entries - begun_before - ending_later, 0)
