"""Messages that wait for their topic to be known: where they go then, and what becomes of them if it never is.

They wait in the undesignated lane, framed in batches like all others. A batch whose messages have no key goes on as it
is. Others are sorted by partition, by columns, and go on in as many batches.

Runs on: the I/O thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.errors import BusyError, MessageError, PenstockError
from penstock.produce.batch import Batch, SealReason, State
from penstock.produce.lanes import UNDESIGNATED, Lanes, ProducerLane
from penstock.produce.regroup import as_routed, regroup


def designate(lanes: Lanes, partitions: int, available: Sequence[int]) -> None:
    """The topic has so many partitions: messages that waited for it go to their lanes, before any later ones."""
    detached: list[Batch] = []
    with lanes.settling() as settled:
        is_new = lanes.directions.partitions != partitions
        if lanes.directions.learn_locked(partitions, available):
            lanes.intake.current = None
        if is_new:
            lanes.intake.partitions = partitions
            _refuse_missing_locked(lanes, partitions, settled)
        waiting: ProducerLane | None = lanes.intake.lanes.pop(UNDESIGNATED, None)
        if waiting is not None:
            lanes.accumulator.discount_lanes(1)  # first, so that its place can be taken by one that it goes on in
            lanes.detach_open_locked(waiting, SealReason.DELAY, detached)
            for batch in waiting.queue:
                _send_on_locked(lanes, batch, detached, settled)
    lanes.seal_all(detached)


def _send_on_locked(lanes: Lanes, batch: Batch, detached: list[Batch], settled: list[Batch]) -> None:
    """Let the messages of an undesignated batch go to the lanes that they belong to."""
    if batch.verdict is not None:
        return
    columns = batch.buffer.columns()
    if columns.keys is None and lanes.directions.own_router is None:
        try:
            lane = lanes.present_locked()
        except Exception as error:  # noqa: BLE001  # too many lanes are open, or what a user's spread raised
            batch.settle(State.FAILED, as_routed(error))
            settled.append(batch)
            return
        batch.partition = lane.partition
        lanes.queue_locked(lane, batch)
        detached.append(batch)
        return
    arrivals = lanes.directions.arrivals_locked(columns, lanes.queued)
    parts, moved = regroup(columns, arrivals, lambda number, size: lanes.new_part(batch, number, size))
    for part in parts:
        try:
            lane = lanes.lane_locked(part.partition)
        except BusyError as error:
            part.settle(State.FAILED, error)
            settled.append(part)
            continue
        lanes.queue_locked(lane, part)
        detached.append(part)
    batch.settle(State.FAILED, moved)
    settled.append(batch)


def _refuse_missing_locked(lanes: Lanes, partitions: int, settled: list[Batch]) -> None:
    """Messages that named a partition before it was known that there is none."""
    for number in [number for number in lanes.intake.lanes if number >= partitions]:
        lane: ProducerLane = lanes.intake.lanes.pop(number)
        lanes.accumulator.discount_lanes(1)
        error = MessageError(f"partition: expected 0 to {partitions - 1}, found {number}; the topic has {partitions}")
        if lane.delivery is not None:
            settled += [batch for batch, _ in lane.delivery.fail_all(error)]
        lanes.fail_lane_locked(lane, error, settled)


def expire(lanes: Lanes, now: float, error: Callable[[], PenstockError]) -> float | None:
    """Settle what waited too long for its topic to be known; when the next one's time is up."""
    with lanes.settling() as settled:
        lane: ProducerLane | None = lanes.intake.lanes.get(UNDESIGNATED)
        if lane is None:
            return None
        waiting = [*lane.queue, *lane.open.values()]
        if any(batch.expires_at <= now for batch in waiting):
            for batch in [batch for batch in lane.open.values() if batch.expires_at <= now]:
                lanes.detach_locked(lane, batch, SealReason.CLOSE, [])
            for batch in [batch for batch in lane.queue if batch.expires_at <= now]:
                lane.queue.remove(batch)
                if batch.verdict is None:
                    batch.settle(State.FAILED, error())
                    settled.append(batch)
        return min((batch.expires_at for batch in (*lane.queue, *lane.open.values())), default=None)
