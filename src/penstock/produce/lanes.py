"""The lanes of one producer: where messages are put into open batches, and when these are sealed.

    send ──> open batch of the lane ──detach──> queue of the lane ──seal──> sender
                                      (locked)                     (unlocked)

A batch takes its place in the queue when it is detached, under the lock, and is compressed after that, without it: two
threads that seal cannot swap their batches, and nobody waits for a compression that is not his. The sender takes the
head of a queue only when it is sealed.

A batch that is due while others of its lane still wait to be sent stays open and grows: it could not leave any sooner.
The sender seals it when they have left.

While it is not known how many partitions the topic has, messages that do not name one go to the undesignated lane. When
it is known, that lane is emptied into the others before any later message can get there.

Memory is reserved as a batch grows, in steps, not for each message. What a sealed batch does not need any more is given
back at once, the rest when it is settled.

Runs on: any thread. `lock` guards the lanes and their open batches.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.clock import Clock, SystemClock
from penstock.config import BatchPolicy, ProducerOptions
from penstock.errors import ClosedError, MessageError, PenstockError, UnknownTopicError
from penstock.net.failures import because
from penstock.produce.accumulator import Accumulator
from penstock.produce.batch import NO_FIELDS, Batch, Fields, SealReason, State
from penstock.produce.claims import Listing, Restriction, Shared, claim_of
from penstock.produce.delivery import LaneDelivery
from penstock.produce.directions import Directions
from penstock.produce.incoming import Incoming, checked_partition
from penstock.produce.kernel import NEVER_NS, RESTRICTED_MAX, Intake, Lane
from penstock.produce.patience import Patience
from penstock.produce.receipts import Home, Moved, Settlement, announce
from penstock.produce.router import HASHES, OwnRouter, Spread, check_partition
from penstock.produce.stats import LaneCounts, LaneStats, ProducerStats, TinyBatchWatch, lane_stats
from penstock.wire.compression import Codec, check_level
from penstock.wire.entry import BatchBuffer
from penstock.wire.protocol import Identity, Spoilt, Stored, Wire

UNDESIGNATED: Final = -1
FIRST_RESERVATION: Final = 16_384
HEADER_BYTES: Final = 128
"""No system's header of a batch takes more."""


class Parts(NamedTuple):
    """What the lanes of a producer are made of."""

    topic: str
    wire: Wire
    accumulator: Accumulator
    clock: Clock
    home: Home
    options: ProducerOptions
    policy: BatchPolicy
    router: Spread | OwnRouter


class ProducerLane(Lane):
    """The lane of one partition: its open batches, and those that were detached and not yet taken by the sender."""

    def __init__(self, owner: Lanes, partition: int, now: float) -> None:
        super().__init__()
        self.owner = owner
        self.partition = partition
        self.count_max = owner.policy.count_max
        self.open: dict[Shared, Batch] = {}
        self.queue: deque[Batch] = deque()
        self.is_overdue = False
        """An open batch stays open only because others of the lane must leave first."""
        self.delivery: LaneDelivery | None = None
        self.counts = LaneCounts()
        self.used_at = now
        self.last_size = 0
        """What the last batch came to."""

    def __repr__(self) -> str:
        return f"<Lane {self.owner.topic}-{self.partition}, {len(self.open)} open, {len(self.queue)} queued>"

    @property
    def has_backlog(self) -> bool:
        """Whether batches of it still wait to be sent."""
        return bool(self.queue) or (self.delivery is not None and self.delivery.has_waiting)

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it waits for anything."""
        return not self.open and not self.queue and (self.delivery is None or self.delivery.is_at_rest)

    def queue_bytes(self) -> int:
        """Bytes that wait in it to be sent."""
        waiting = self.delivery.bytes_waiting if self.delivery is not None else 0
        return waiting + sum(batch.reserved for batch in list(self.queue))


class Lanes:
    """All lanes of one producer, and the careful way through `send`."""

    def __init__(self, parts: Parts) -> None:
        self.topic = parts.topic
        self.policy = parts.policy
        self.options = parts.options
        self.wire = parts.wire
        self.accumulator = parts.accumulator
        self.memories: dict[int, tuple[Identity, int]] = {}
        """What dropped lanes must remember."""
        self.unsettled: dict[Batch, None] = {}
        self.acked = self.failed = 0
        self.failure: PenstockError | None = None
        """The first error that a message met, since somebody last forgot it."""
        self.forwards = False
        """Whether its batches were stored by another log: none is divided, and one that fails takes those behind it
        along."""
        self.put_off: Callable[[ProducerLane], bool] | None = None
        """Where batches have no delay: may see to it that `seal_overdue` is called a little later instead of now."""
        self._clock = parts.clock
        self.home = parts.home
        self.directions = Directions(parts.topic, parts.router, HASHES[parts.options.hash], parts.policy.bytes_max)
        self.restriction = Restriction(parts.policy.same_properties) if parts.policy.same_properties else None
        self._codec = Codec(parts.options.compression)
        check_level(self._codec, parts.options.compression_level)
        self._watch = TinyBatchWatch(parts.topic)
        self._patience = Patience(self)
        self._dropped = LaneCounts()
        self._last_size = 0
        self._closed: PenstockError | None = None
        self._refusal: Callable[[], PenstockError] | None = None
        self.lock = threading.RLock()  # guards the lanes and their open batches
        self.intake = Intake(self.due, self.directions.hash_key, self.lock)
        if self.restriction is not None and len(self.restriction.names) <= RESTRICTED_MAX:
            self.intake.restrict(self.restriction.names, self.restriction.allowed)
        self.intake.is_fast = self._fast_way_is_open()
        self.accumulator.join(self)

    def __repr__(self) -> str:
        return f"<Lanes of {self.topic}, {len(self.intake.lanes)} open, {len(self.unsettled)} batches unsettled>"

    def fitting_locked(self, lane: ProducerLane, fields: Fields, shared: Shared, detached: list[Batch]) -> Batch | None:
        """The open batch that this message may join; those that it may not follow are sealed."""
        batch = lane.open.get(shared)
        if batch is None and lane.open:
            if self.policy.order == "lane":
                (other,) = lane.open.values()
                self.detach_locked(lane, other, SealReason.PROPERTIES, detached, shared)
            elif len(lane.open) >= self.policy.groups_max:
                self.detach_locked(lane, next(iter(lane.open.values())), SealReason.PROPERTIES, detached, shared)
        if batch is not None and batch.fields != fields:
            self.detach_locked(lane, batch, SealReason.FIELD, detached)
            batch = None
        return batch

    def opening_size(self, size: int) -> int:
        """What is reserved at least for a batch whose first message takes so many bytes."""
        wanted = max(size + HEADER_BYTES, min(FIRST_RESERVATION, self.policy.bytes_max))
        return min(wanted, self.accumulator.budget.bytes_max)  # a message as large as the memory has it all

    def room_wanted(self, size: int) -> int:
        """What to wait for when memory is used up: room for a batch like the last, not just for one message.

        With small grants batches would be small, and as they cost the broker the most, the memory would stay full.
        """
        return min(max(self.opening_size(size), self._last_size), self.accumulator.budget.bytes_max)

    def open_bytes(self) -> int:
        """Bytes that open batches hold."""
        return sum(batch.reserved for lane in self._all_lanes() for batch in list(lane.open.values()))

    def likely_size(self, lane: ProducerLane) -> int:
        """What the next batch of a lane will probably come to: reserved at once, it need not grow step by step."""
        return min(lane.last_size + lane.last_size // 8, self.policy.bytes_max)

    def open_locked(self, lane: ProducerLane, fields: Fields, shared: Shared, size: int) -> Batch:
        """An empty batch in this lane; so many bytes were reserved for it."""
        batch = self._new_batch(lane.partition, size)
        batch.fields = fields
        batch.shared = shared
        delay = self.policy.delay_ms / 1000
        batch.due_at = batch.created_at + delay
        lane.open[shared] = batch
        lane.used_at = batch.created_at
        batch.listing = self.new_listing()
        if self.intake.is_fast and fields == NO_FIELDS:  # messages of the fast way have none
            lane.shared = shared
            lane.batch = batch
            lane.deadline_ns = self._clock.wall_ms() * 1_000_000 + int(delay * 1e9)
        if lane.partition == UNDESIGNATED:
            self.accumulator.ready(lane)  # the sender sees to it that the topic is looked up
        elif delay > 0:
            batch.watcher = self._patience.awaited
            self.accumulator.opened(lane, batch)
        return batch

    def new_listing(self) -> Listing | None:
        """Where the values of listed properties are noted, if some are listed."""
        names = self.policy.listed_properties
        return Listing(names, self.policy.listed_values_max) if names else None

    def _new_batch(
        self, partition: int, size: int, like: Batch | None = None, buffer: BatchBuffer | None = None
    ) -> Batch:
        now = self._clock.monotonic() if like is None else like.created_at
        expires_at = now + self.options.delivery_timeout_ms / 1000 if like is None else like.expires_at
        buffer = self.wire.buffer(size) if buffer is None else buffer
        batch = Batch(buffer, now, expires_at, self.topic, partition, self.home)
        batch.reserved = size
        if like is not None:
            batch.fields, batch.shared, batch.reason = like.fields, like.shared, like.reason
        self.unsettled[batch] = None
        return batch

    def append_locked(self, lane: ProducerLane, batch: Batch, message: Incoming) -> int:
        """Frame a message into an open batch; its index, -1 when there is no room for it."""
        time_ms = self._clock.wall_ms() if message.time_ms is None else message.time_ms
        if lane.batch is batch:
            lane.buffer = None  # nobody else's while foreign code may run
        try:
            index = batch.buffer.append(message.value, message.key, message.properties, time_ms)
        finally:
            if not batch.count:
                self._discard_locked(lane, batch)
            elif lane.batch is batch:
                lane.buffer = batch.buffer
        if index >= 0 and batch.listing is not None:
            batch.listing.add(message.properties)
        return index

    def fill_locked(self, lane: ProducerLane, batch: Batch, source: Any, start: int) -> tuple[int, int]:
        """Frame messages of a source into an open batch, as many as there is room for; the first's index, how many."""
        if lane.batch is batch:
            lane.buffer = None  # nobody else's from here on, so that the count stands
        try:
            index = batch.count
            left = self.policy.count_max - index
            if self.policy.bytes_max // source.smallest() > left < len(source) - start:
                source, start = source.taken(np.arange(start, start + left)), 0
            taken: int = source.fill(batch.buffer, start)
        finally:
            if not batch.count:
                self._discard_locked(lane, batch)
            elif lane.batch is batch:
                lane.buffer = batch.buffer
        if batch.listing is not None:
            for number in range(start, start + taken):
                batch.listing.add(source.properties(number))
        return index, taken

    def _discard_locked(self, lane: ProducerLane, batch: Batch) -> None:
        """Nothing came into this batch: it is as if it had never been opened."""
        del lane.open[batch.shared]
        self._take_away_locked(lane, batch)
        batch.reason = SealReason.CLOSE
        self.unsettled.pop(batch, None)
        self.accumulator.budget.release(batch.reserved)

    def _take_away_locked(self, lane: ProducerLane, batch: Batch) -> None:
        """The fast way must not find this batch any more. The buffer goes first: who finds it relies on the batch."""
        if lane.batch is batch:
            lane.buffer = None
            lane.batch = None
            lane.deadline_ns = NEVER_NS

    def grow(self, batch: Batch, size: int) -> bool:
        """Reserve more for a batch that may still grow."""
        more = min(max(batch.reserved, size), self.policy.bytes_max - batch.reserved)
        if more <= 0 or not self.accumulator.budget.try_reserve(more):
            return False
        batch.reserved += more
        batch.buffer.bytes_max = batch.reserved
        return True

    # Sealing

    def due(self, lane: ProducerLane, batch: Batch) -> None:
        """A batch was found full, or its delay over."""
        detached: list[Batch] = []
        with self.lock:
            if lane.open.get(batch.shared) is batch:
                self.maybe_due_locked(lane, batch, detached, is_due=True)
        self.seal_all(detached)

    def maybe_due_locked(self, lane: ProducerLane, batch: Batch, detached: list[Batch], is_due: bool = False) -> None:
        """Seal a batch that is full or due; one that must wait for others of its lane anyway stays open."""
        if batch.count >= self.policy.count_max:
            self.detach_locked(lane, batch, SealReason.COUNT, detached)
        elif self.policy.bytes_max == 0:
            self.detach_locked(lane, batch, SealReason.BYTES, detached)
        elif is_due or self.policy.delay_ms == 0:
            was_overdue = lane.is_overdue
            lane.is_overdue = True  # before looking: the sender looks here after it has taken the last before this one
            if lane.partition == UNDESIGNATED or lane.has_backlog or self._puts_off_locked(lane):
                lane.deadline_ns = NEVER_NS
            else:
                lane.is_overdue = was_overdue
                self.detach_locked(lane, batch, _delay_of(batch), detached)

    def _puts_off_locked(self, lane: ProducerLane) -> bool:
        return self.put_off is not None and self.policy.delay_ms == 0 and self.put_off(lane)

    def seal_overdue(self, lane: ProducerLane) -> None:
        """The sender has taken what was before: seal what stayed open only for that."""
        if not lane.is_overdue:
            return
        detached: list[Batch] = []
        with self.lock:
            if lane.is_overdue and not lane.has_backlog:
                lane.is_overdue = False
                now = self._clock.monotonic()
                for batch in [batch for batch in lane.open.values() if batch.due_at <= now]:
                    self.detach_locked(lane, batch, _delay_of(batch), detached)
        self.seal_all(detached)

    def seal_open(self, reason: SealReason) -> None:
        """Seal all open batches."""
        detached: list[Batch] = []
        with self.lock:
            for lane in self._all_lanes():
                self.detach_open_locked(lane, reason, detached)
        self.seal_all(detached)

    def press(self) -> None:
        """Memory is used up: what is open is sealed, as far as it can leave."""
        detached: list[Batch] = []
        with self.lock:
            for lane in self._all_lanes():
                self.detach_open_locked(lane, SealReason.MEMORY, detached)
        self.seal_all(detached)

    def detach_full_locked(self, lane: ProducerLane, batch: Batch, detached: list[Batch]) -> None:
        """Seal a batch that has no room for the next message, by its own limit or by the client's."""
        full = batch.reserved >= self.policy.bytes_max
        self.detach_locked(lane, batch, SealReason.BYTES if full else SealReason.MEMORY, detached)

    def detach_open_locked(self, lane: ProducerLane, reason: SealReason, detached: list[Batch]) -> None:
        """Seal all that a lane has open."""
        for batch in list(lane.open.values()):
            self.detach_locked(lane, batch, reason, detached)

    def detach_locked(
        self,
        lane: ProducerLane,
        batch: Batch,
        reason: SealReason,
        detached: list[Batch],
        next_shared: Shared | None = None,
    ) -> None:
        """Take a batch out of its lane's open ones into the queue; `next_shared` is why, where properties are."""
        del lane.open[batch.shared]
        self._take_away_locked(lane, batch)
        batch.reason = reason
        self._patience.learn_locked(batch)
        lane.last_size = self._last_size = batch.buffer.size
        self.queue_locked(lane, batch)
        if self.restriction:
            differing = self.restriction.differing(batch.shared, next_shared) if next_shared is not None else []
            self._watch.add(batch, differing)
        if lane.partition != UNDESIGNATED:
            detached.append(batch)

    def queue_locked(self, lane: ProducerLane, batch: Batch) -> None:
        """Give a batch that is not open any more its place in its lane."""
        lane.queue.append(batch)
        lane.counts.add(batch, batch.reason or SealReason.DELAY)
        if self.directions.sealed_locked(lane.partition, batch.buffer.size):
            self.intake.current = None

    def seal_all(self, detached: list[Batch]) -> None:
        """Seal batches that were detached, in their order; the lock is not held."""
        for batch in detached:
            self.seal(batch)

    def seal(self, batch: Batch) -> None:
        """Compress a detached batch, without the interpreter lock; then the sender may have it."""
        self.compress(batch)
        lane = self.intake.lanes.get(batch.partition)
        if lane is not None:
            self.accumulator.ready(lane)

    def compress(self, batch: Batch) -> None:
        """Make a detached batch a sealed one, or a failed one."""
        try:
            claim = claim_of(self.restriction, batch.shared, batch.listing)
            batch.buffer.seal(self._codec, self.options.compression_level, claim)
        except Exception as error:  # noqa: BLE001  # of a codec, or no memory: its messages hear of it, no others
            with self.settling() as settled:
                if batch.verdict is None:
                    batch.settle(State.FAILED, as_ours("its batch cannot be sealed", error))
                    settled.append(batch)
            return
        with self.lock:
            if batch.verdict is None:
                self._shrink(batch)
                batch.sealed_at = self._clock.monotonic()
                batch.move(State.SEALED)

    def _shrink(self, batch: Batch) -> None:
        needed = batch.buffer.held + HEADER_BYTES
        budget = self.accumulator.budget
        if needed < batch.reserved:
            budget.release(batch.reserved - needed)
        else:
            budget.force(needed - batch.reserved)
        batch.reserved = needed

    # Where messages go

    def choose_locked(self, partition: int | None) -> ProducerLane:
        """The lane of a partition; None: that of messages without a key, or whose partition is not known yet."""
        if partition is not None:
            return self.lane_locked(partition)
        if not self.directions.partitions:
            return self.lane_locked(UNDESIGNATED)
        return self.present_locked()

    def present_locked(self) -> ProducerLane:
        """The lane of messages without a key."""
        lane = self.lane_locked(self.directions.present_locked(self.queued))
        self.intake.current = lane
        return lane

    def queued(self) -> dict[int, int]:
        """Bytes that wait to be sent, by partition; those without any are left out."""
        return {number: lane.queue_bytes() for number, lane in self.intake.lanes.items() if lane.has_backlog}

    def check_designated(self, partition: int | None) -> None:
        """Raise where it is not known which partition messages would go to, or where there is no such one."""
        partitions = self.directions.partitions
        if partition is None and not partitions:
            raise UnknownTopicError(
                f"how many partitions {self.topic} has is not known yet: wait with `ready`, or name a partition"
            )
        if partition is not None:
            check_partition(checked_partition(partition), partitions or partition + 1)

    def adopt_locked(self, lane: ProducerLane, buffer: BatchBuffer, size: int, shared: Shared) -> Batch:
        """A hand-made batch, as the only open one of this lane; so many bytes were reserved for it."""
        batch = self._new_batch(lane.partition, size, buffer=buffer)
        batch.shared = shared
        lane.open[shared] = batch
        lane.used_at = batch.created_at
        return batch

    def forward(self, buffer: BatchBuffer, partition: int) -> Batch:
        """Let a sealed batch go its way as it is. Whoever forwards keeps within a limit of his own: nobody waits here.

        Runs on: the I/O thread.
        """
        size = buffer.held + HEADER_BYTES
        with self.lock:
            self.check_open()
            lane = self.lane_locked(partition)
            self.accumulator.budget.force(size)
            batch = self._new_batch(partition, size, buffer=buffer)
            batch.reason = SealReason.DIRECT
            batch.move(State.SEALED)
            lane.used_at = batch.created_at
            self.queue_locked(lane, batch)
        self.accumulator.ready(lane)
        return batch

    def lane_locked(self, partition: int) -> ProducerLane:
        """The lane of a partition, opened when first asked for."""
        lane: ProducerLane | None = self.intake.lanes.get(partition)
        if lane is None:
            self.accumulator.count_lane()
            lane = self.intake.lanes[partition] = ProducerLane(self, partition, self._clock.monotonic())
        return lane

    def new_part(self, batch: Batch, partition: int, size: int) -> Batch:
        """An empty batch for some of the messages of another one."""
        self.accumulator.budget.force(size + HEADER_BYTES)
        part = self._new_batch(partition, size + HEADER_BYTES, like=batch)
        part.listing = batch.listing  # what is listed for all holds for some
        return part

    # The end of batches, of lanes, of the producer

    @contextlib.contextmanager
    def settling(self) -> Iterator[list[Batch]]:
        """The lock, and a list for what is settled under it: who waits is told without it, since that is foreign code.

        A callback may want a lock that is held by somebody who sends.
        """
        settled: list[Batch] = []
        try:
            with self.lock:
                yield settled
        finally:
            for batch in settled:
                self.finish(batch)

    def finish(self, batch: Batch) -> None:
        """A batch has its verdict: tell who waits, and give its memory back. The count goes last."""
        if isinstance(batch.verdict, Moved):
            self.failed += len(batch.verdict.errors)
        elif batch.state is State.ACKED:
            self.acked += batch.count
        else:
            self.failed += batch.count
        self.failure = self.failure or _failure_of(batch.verdict)
        announce(batch)
        self.unsettled.pop(batch, None)
        batch.let_go()
        reserved, batch.reserved = batch.reserved, 0
        self.accumulator.budget.release(reserved)

    def fail_lane_locked(self, lane: ProducerLane, error: PenstockError, settled: list[Batch]) -> None:
        """Settle all of a lane that the sender does not have yet."""
        self.detach_open_locked(lane, SealReason.CLOSE, [])
        for batch in list(lane.queue):
            if batch.state in (State.OPEN, State.SEALED) and batch.verdict is None:
                batch.settle(State.FAILED, error)
                settled.append(batch)
        lane.queue.clear()  # else the lane would seem to have a backlog that nobody takes

    def fail_open(self, error: PenstockError) -> None:
        """Settle all that the sender does not have yet."""
        with self.settling() as settled:
            for lane in self._all_lanes():
                self.fail_lane_locked(lane, error, settled)

    def drop_idle(self, before: float) -> None:
        """Drop the lanes that hold nothing and were last used before this moment."""
        if not self.lock.acquire(blocking=False):
            return  # in use; whoever asks may hold another producer's lock, and must not wait for this one
        try:
            idle = [lane for lane in self.intake.lanes.values() if lane.used_at < before and lane.is_idle]
            for lane in idle:
                del self.intake.lanes[lane.partition]
                if lane is self.intake.current:
                    self.intake.current = None
                if lane.delivery is not None and (memory := lane.delivery.memory()) is not None:
                    self.memories[lane.partition] = memory
                self._dropped.merge(lane.counts)
        finally:
            self.lock.release()
        self.accumulator.discount_lanes(len(idle))

    def close(self, reason: PenstockError) -> None:
        """Take no more messages; what is open is sealed."""
        with self.lock:
            self._closed = reason
            self.intake.is_fast = False
        self.seal_open(SealReason.CLOSE)

    def refuse(self, refusal: Callable[[], PenstockError] | None) -> None:
        """Take no message from now on, for this reason; None: take them again."""
        with self.lock:
            self._refusal = refusal
            self.intake.is_fast = refusal is None and self._closed is None and self._fast_way_is_open()

    def disown(self, reason: PenstockError) -> None:
        """Take no message in a child of `fork()`. Takes no lock: it may be held by a thread that is gone."""
        self._closed = reason
        self.intake.is_fast = False

    def leave(self) -> None:
        """All is settled: the accumulator need not know these lanes any more."""
        self.accumulator.leave(self)
        with self.lock:
            self.accumulator.discount_lanes(len(self.intake.lanes))
            self.intake.lanes.clear()
            self.intake.current = None

    def stats(self) -> ProducerStats:
        """All numbers at this moment."""
        with self.lock:
            total = LaneCounts()
            total.merge(self._dropped)
            lanes = {}
            for number, lane in sorted(self.intake.lanes.items()):
                total.merge(lane.counts)
                lanes[number] = self._lane_stats(lane)
            queue = sum(stats.queue for stats in lanes.values())
            queue_bytes = sum(stats.queue_bytes for stats in lanes.values())
            partitions = self.intake.partitions or None
            return ProducerStats(
                self.topic, partitions, lanes, lane_stats(total, queue, queue_bytes), self.acked, self.failed
            )

    def _lane_stats(self, lane: ProducerLane) -> LaneStats:
        on_its_way = [batch for batch in list(self.unsettled) if batch.partition == lane.partition]
        return lane_stats(lane.counts, len(on_its_way), sum(batch.reserved for batch in on_its_way))

    def _all_lanes(self) -> list[ProducerLane]:
        return list(self.intake.lanes.values())

    def _fast_way_is_open(self) -> bool:
        """Whether most messages need nothing but framing."""
        policy = self.policy
        return (
            isinstance(self._clock, SystemClock)
            and (not policy.same_properties or policy.order == "lane")
            and len(policy.same_properties) <= RESTRICTED_MAX
            and not policy.listed_properties
            and self.directions.own_router is None
            and policy.count_max > 1
            and 0 < policy.bytes_max <= self.options.message_bytes_max
        )

    def check_open(self) -> None:
        """Raise when no messages are taken now."""
        self.check_not_closed()
        if self._refusal is not None:
            raise self._refusal()

    def check_not_closed(self) -> None:
        """Raise when no messages will be taken any more."""
        if self._closed is not None:
            raise ClosedError(str(self._closed))


def _failure_of(verdict: Settlement) -> PenstockError | None:
    """The error of a message that was not stored, if there is one in a batch with this verdict."""
    if isinstance(verdict, Moved):
        return next(iter(verdict.errors.values()), None)
    return None if isinstance(verdict, Stored) else verdict.error if isinstance(verdict, Spoilt) else verdict


def _delay_of(batch: Batch) -> SealReason:
    """Why a batch leaves that was due."""
    return SealReason.AWAITED if batch.is_hurried else SealReason.DELAY


def as_ours(text: str, error: Exception) -> PenstockError:
    """What went wrong with a batch as the error of its messages."""
    return error if isinstance(error, PenstockError) else because(MessageError(f"{text}: {error}"), error)
