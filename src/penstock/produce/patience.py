"""Whether a batch that somebody waits for is held back by its delay, in the hope that other messages join it.

That hope is in vain where all who send wait: one thread that asks for every outcome, or a thousand tasks that each
await theirs, send nothing more before they have it. So it is learnt: when somebody begins to wait for an open batch,
its messages are counted, and again when it is sealed. Where nothing had joined a few times in a row, awaited batches
leave at once; now and then one is held back all the same, to see whether that has changed.

Runs on: any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.produce.batch import Batch, SealReason

if TYPE_CHECKING:
    from penstock.produce.lanes import Lanes, ProducerLane

VAIN_MAX: Final = 3
"""How often in a row nothing joins before it is given up."""
TRIAL_EVERY: Final = 32
"""Of so many awaited batches one is held back all the same."""


class Patience:
    """What one producer has learnt about its awaited batches. The lanes' lock guards it."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._vain = 0
        self._hurried = 0

    def __repr__(self) -> str:
        return f"<Patience, {self._vain} times in vain, {self._hurried} hurried since the last trial>"

    def awaited(self, batch: Batch) -> None:
        """Somebody begins to wait for this batch: let what is open leave if nobody can be expected to join it.

        That is what its lane has open, itself perhaps, and the lane of messages without a key: whoever waits for a
        message waits next for those that he sent after it.
        """
        lanes = self._lanes
        detached: list[Batch] = []
        with lanes.lock:
            for lane in {lanes.intake.lanes.get(batch.partition), lanes.intake.current}:
                for held in list(lane.open.values()) if lane is not None else ():
                    self._awaited_locked(lane, held, detached)
        lanes.seal_all(detached)

    def _awaited_locked(self, lane: ProducerLane, batch: Batch, detached: list[Batch]) -> None:
        if batch.awaited_count >= 0 or batch.watcher is None:
            return
        batch.awaited_count = batch.count
        if self._is_in_vain():
            batch.is_hurried = True
            batch.due_at = batch.created_at
            self._lanes.maybe_due_locked(lane, batch, detached, is_due=True)

    def learn_locked(self, batch: Batch) -> None:
        """A batch is sealed: see whether it was of use to hold it back."""
        if batch.awaited_count < 0 or batch.is_hurried:
            return
        if batch.count > batch.awaited_count:
            self._vain = 0
        elif batch.reason is SealReason.DELAY:
            self._vain += 1

    def _is_in_vain(self) -> bool:
        if self._vain < VAIN_MAX:
            return False
        self._hurried = (self._hurried + 1) % TRIAL_EVERY
        return self._hurried > 0
