"""One partition as the broker sees it: its log, its producers, who waits for more, and the way in.

The way of an entry: judged (size, time, transaction, producer), written to the log, counted, and handed to the commit
thread; entries of one turn of the loop share a round. When the round is durable its `done` is called, in the order of
publishing, and then who waits for more. Under the policy `system` nobody waits for a round: `done` is called before
`publish` returns.

When an entry could not be made durable, what was remembered of it is taken back, so that one that is sent again is not
taken for one that is stored.

`leader_epoch` is 0 for ever: there is one broker, and what readers were shown is never taken back.

Runs on: the loop thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from penstock.broker.log.partition import PartitionLog, Place
from penstock.broker.producer_names import PartitionProducerNames
from penstock.broker.producers import PartitionProducers
from penstock.broker.refusals import Refusal, Refused, refusal_of
from penstock.broker.rounds import Rounds
from penstock.broker.settings import TopicSettings
from penstock.broker.stats import PartitionStats
from penstock.broker.topics import Topic
from penstock.broker.transactions.seams import Enlisting, Marker
from penstock.errors import StorageError
from penstock.wire.entry import Buffer, EntryFlag, EntryFormat, EntryHeader
from penstock.wire.protocol import Partition

_log = logging.getLogger("penstock.broker")

Published: TypeAlias = Callable[[Place | Exception], None]
"""Told where an entry is, once that is durable, or why it is not stored."""

# Plain numbers, because flags as an enum take a microsecond for each look at them.
_TRANSACTIONAL: Final = int(EntryFlag.TRANSACTIONAL)
_LOG_TIME: Final = int(EntryFlag.LOG_TIME)
_REFUSED_FLAGS: Final = int(EntryFlag.CONTROL | EntryFlag.THINNED)


class Owner(Protocol):
    """The broker, as far as a partition sees it."""

    @property
    def rounds(self) -> Rounds:
        """Who makes durable what was appended."""

    def admit(
        self,
        header: EntryHeader,
        partition: Partition,
        transactional_id: str | None,
        joins: bool,
        now: float,
        now_ms: int,
    ) -> Enlisting | None:
        """Whether the transactions allow an entry of a producer with an id; Refused otherwise."""

    def advanced(self, state: PartitionState) -> None:
        """More can be read."""

    def changed(self, state: PartitionState) -> None:
        """Its producers are to be written down some time."""


class PartitionState:
    """One open partition. Ask `Broker.partition` for it in each turn: one that is not used is closed."""

    __slots__ = (
        *(
            "_marker_format",
            "_owner",
            "_rounds",
            "_waiters",
            "gone",
            "in_flight",
            "log",
            "names",
            "number",
            "partition",
        ),
        *("producers", "stats", "topic", "unsaved", "used_at"),
    )
    leader_epoch: Final = 0

    def __init__(
        self,
        topic: Topic,
        number: int,
        log: PartitionLog,
        producers: PartitionProducers,
        names: PartitionProducerNames,
        stats: PartitionStats,
        marker_format: EntryFormat,
        owner: Owner,
    ) -> None:
        self.topic: Final = topic
        self.number: Final = number
        self.partition: Final = Partition(topic.name, number)
        self.log: Final = log
        self.producers = producers
        """Who stored what; made anew if that cannot be taken back otherwise."""
        self.names: Final = names
        """Who is producing at present."""
        self.stats: Final = stats
        self.in_flight = 0
        """Entries that are not known to be durable, nor to have failed."""
        self.unsaved = 0
        """Entries since the producers were last written down."""
        self.used_at = 0.0
        self.gone = False
        """Whether it is deleted, or closed."""
        self._marker_format = marker_format
        self._owner = owner
        self._rounds = owner.rounds
        self._waiters: dict[Callable[[], None], None] = {}

    def __repr__(self) -> str:
        words = [f"{self.log.start} to {self.log.end}", f"visible to {self.log.visible}"]
        words += [f"{len(self._waiters)} waiting"] * bool(self._waiters) + ["gone"] * self.gone
        return f"<PartitionState {self.partition} {', '.join(words)}>"

    # The way in

    def publish(
        self,
        entry_format: EntryFormat,
        entry: Buffer,
        header: EntryHeader,
        now: float,
        now_ms: int,
        producer_name: str = "",
        transactional_id: str | None = None,
        done: Published | None = None,
        *,
        enlists: bool = False,
    ) -> Place:
        """Store an entry; Refused at once when it cannot be, and then `done` is not called.

        `header` is what `entry_format.check(entry)` told. A duplicate is answered with its old place. `enlists`: a
        transaction that does not know the partition yet takes it up with this entry.
        """
        settings = self.topic.settings
        self._judge(header, transactional_id, now_ms, settings)
        enlisting: Enlisting | None = None
        if header.producer is not None:
            where = self.partition
            enlisting = self._owner.admit(header, where, transactional_id, enlists, now, now_ms)
            place = self.producers.check(header, from_zero=enlists)
            if place is not None:
                self._tell_when_durable(place, _gated(done, enlisting))
                return place
        self._check_room(header, producer_name, now, now_ms, settings)
        if settings.time_type == "log":
            entry, header = _dated_by_log(entry_format, entry, header, now_ms)
        elif int(header.flags) & _LOG_TIME:
            entry, header = entry_format.dated(entry, None), header._replace(flags=header.flags & ~EntryFlag.LOG_TIME)
        place = self._append(entry_format, entry, header, now_ms)
        self.producers.stored(header, place, now_ms, producer_name)
        self.stats.published(producer_name, header.count, header.size, now)
        self._submit(place, _gated(done, enlisting))
        return place

    def mark(self, marker: Marker, now_ms: int, done: Published | None = None) -> None:
        """Store the marker that ends a transaction here; for the coordinator. StorageError when that cannot be now.

        What the transaction did is seen once it is released.
        """
        form = self._marker_format
        entry = form.marker(marker.committed, marker.producer, marker.epoch, now_ms, marker.coordinator_epoch)
        header = form.check(entry)
        place = self.log.append(form, entry, header, now_ms, self.leader_epoch)
        self.producers.ended(header, place, marker.committed, now_ms, held=True)
        self._submit(place, done)

    def release(self, producer: int) -> None:
        """All partitions have the marker of the producer's last transaction: it may be seen."""
        self.producers.release(producer)
        self._owner.advanced(self)

    # The way out

    def readable_end(self, committed_only: bool = False) -> int:
        """Readers get what lies below: all that is durable, or of that what no open transaction precedes."""
        visible = self.log.visible
        return self.producers.last_stable(visible) if committed_only else visible

    def wait(self, waiter: Callable[[], None]) -> None:
        """Call this each time that more can be read, and when the partition goes, until `unwait`."""
        self._waiters[waiter] = None

    def unwait(self, waiter: Callable[[], None]) -> None:
        """Do not call it any more; nothing if it does not wait."""
        self._waiters.pop(waiter, None)

    def wake(self) -> None:
        """Call everybody who waits; one that raises is logged and harms nobody else."""
        for waiter in list(self._waiters):
            if waiter in self._waiters:
                try:
                    waiter()
                except Exception:  # noqa: BLE001
                    _log.exception("%s: somebody who waited for more has failed", self.partition)

    @property
    def is_waited_for(self) -> bool:
        """Whether anybody waits for more."""
        return bool(self._waiters)

    # Upkeep

    def delete_before(self, position: int, done: Callable[[int | Exception], None]) -> None:
        """Drop entries before this position (-1: all that is visible); `done` is told where the log starts then.

        Refused (POSITION_OUT_OF_RANGE) when the position is beyond what is visible.
        """
        visible = self.log.visible
        if not -1 <= position <= visible:
            text = f"{self.partition} can be cut from {self.log.start} to {visible}, not at {position}"
            raise Refused(Refusal.POSITION_OUT_OF_RANGE, text)
        try:
            self.log.delete_before(visible if position < 0 else position)
        except StorageError as error:
            raise refusal_of(error) from error
        self.producers.delete_before(self.log.start)
        start = self.log.start
        self._rounds.submit(None, lambda error: done(start if error is None else refusal_of(error)), self.log)

    def enforce_retention(self, now_ms: int, keep_from: int | None) -> int:
        """Drop what the topic's settings do not keep; `keep_from`: nothing from there on. Returns how many entries."""
        settings = self.topic.settings
        dropped = self.log.enforce_retention(now_ms, settings.retention_bytes, settings.retention_ms, keep_from)
        if dropped:
            self.producers.delete_before(self.log.start)
            self._rounds.submit()
        return dropped

    def take_settings(self) -> None:
        """The topic's settings have changed."""
        self.log.segment_bytes = self.topic.settings.segment_bytes
        self.log.segment_age_ms = self.topic.settings.segment_ms

    def note_change(self) -> None:
        """What is known of its producers has changed since it was written down."""
        self.unsaved += 1
        if self.unsaved == 1:
            self._owner.changed(self)

    def leave(self) -> None:
        """It is deleted or closed: nobody finds it any more, and who waits is told."""
        self.gone = True
        self.names.clear()
        self.wake()

    # Pieces

    def _judge(self, header: EntryHeader, transactional_id: str | None, now_ms: int, settings: TopicSettings) -> None:
        if self.gone or self.topic.leaving:
            raise Refused(Refusal.UNKNOWN_TOPIC, f"the topic {self.topic.name} is gone")
        if header.size > settings.entry_bytes_max:
            text = f"{self.partition}: the entry has {header.size} bytes, and {settings.entry_bytes_max} are taken"
            raise Refused(Refusal.ENTRY_TOO_LARGE, text)
        flags = int(header.flags)
        if header.count < 1 or flags & _REFUSED_FLAGS:
            raise Refused(Refusal.BAD_ENTRY, f"{self.partition}: {_fault(header)}")
        if flags & _TRANSACTIONAL and transactional_id is None:
            raise Refused(Refusal.TRANSACTIONAL_ID_NEEDED)
        if settings.time_type == "sender":
            _judge_time(header, now_ms, settings)

    def _check_room(self, header: EntryHeader, name: str, now: float, now_ms: int, settings: TopicSettings) -> None:
        self.names.admit(name, header.producer, now, settings)
        known = self.producers
        if len(known) >= settings.partition_producers_max and header.producer not in known:
            known.expire(now_ms)
            if len(known) >= settings.partition_producers_max and header.producer is not None:
                text = f"{self.partition} remembers {len(known)} producers, and takes no more"
                raise Refused(Refusal.TOO_MANY_PRODUCERS, text)

    def _append(self, entry_format: EntryFormat, entry: Buffer, header: EntryHeader, now_ms: int) -> Place:
        try:
            return self.log.append(entry_format, entry, header, now_ms, self.leader_epoch)
        except StorageError as error:
            raise refusal_of(error) from error

    def _submit(self, place: Place, done: Published | None) -> None:
        self.in_flight += 1
        self.note_change()
        self._rounds.submit(None, lambda error: self._settled(place, done, error))

    def _settled(self, place: Place, done: Published | None, error: Exception | None) -> None:
        self.in_flight -= 1
        if error is None:
            self.producers.settle(self.log.visible)
            self._owner.advanced(self)
        else:
            self.producers.revert(self.log.visible)
        if done is not None:
            done(place if error is None else refusal_of(error))

    def _tell_when_durable(self, place: Place, done: Published | None) -> None:
        if done is None:
            return
        if place.last < self.log.visible:
            done(place)
        else:
            self._rounds.submit(None, lambda error: done(place if error is None else refusal_of(error)), self.log)


def _gated(done: Published | None, enlisting: Enlisting | None) -> Published | None:
    return done if done is None or enlisting is None else enlisting.gate(done)


def _dated_by_log(
    entry_format: EntryFormat, entry: Buffer, header: EntryHeader, now_ms: int
) -> tuple[Buffer, EntryHeader]:
    flags = header.flags | EntryFlag.LOG_TIME
    return entry_format.dated(entry, now_ms), header._replace(min_time_ms=now_ms, max_time_ms=now_ms, flags=flags)


def _judge_time(header: EntryHeader, now_ms: int, settings: TopicSettings) -> None:
    after, before = settings.time_after_max_ms, settings.time_before_max_ms
    if after is not None and header.max_time_ms > now_ms + after:
        ahead = header.max_time_ms - now_ms
        raise Refused(Refusal.BAD_TIME, f"the entry's time is {ahead} ms ahead of the broker's, and {after} are taken")
    if before is not None:
        oldest = header.max_time_ms if header.min_time_ms is None else header.min_time_ms
        if 0 <= oldest < now_ms - before:
            behind = now_ms - oldest
            text = f"the entry's time is {behind} ms behind the broker's, and {before} are taken"
            raise Refused(Refusal.BAD_TIME, text)


def _fault(header: EntryHeader) -> str:
    if header.count < 1:
        return "the entry has no message"
    if header.flags & EntryFlag.CONTROL:
        return "control entries are the log's own"
    return "messages were taken out of the entry, which leaves holes between its positions"
