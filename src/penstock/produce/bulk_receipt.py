"""The receipt of many messages that were sent with one call.

It knows the runs: so many messages from this one on are in that batch from that index on. Where a single message went
is computed when asked.

Runs on: whoever asks.
"""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.errors import PenstockError
from penstock.message import MessageId
from penstock.produce.kernel import Parcel, Receipt
from penstock.produce.receipts import Moved, listen, outcome_of, until_settled, wait_for
from penstock.wire.columns import Int64s
from penstock.wire.protocol import Stored


@dataclass(frozen=True, slots=True)
class Run:
    """Messages one after the other in one batch."""

    start: int
    """The number of the first, in the order in which they were put into batches."""
    batch: Parcel
    index: int
    """Its index in the batch."""
    count: int


class BulkReceipt:
    """The receipt of many messages: for all of them, and for each."""

    def __init__(self, runs: Sequence[Run], place_of: Int64s | None) -> None:
        """`place_of` tells for each message as which it was put into batches; None: in the order given."""
        self._runs = runs
        self._starts = [run.start for run in runs]
        self._place_of = place_of

    def __len__(self) -> int:
        return self._runs[-1].start + self._runs[-1].count if self._runs else 0

    def __getitem__(self, index: int) -> Receipt:
        """The receipt of one message."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"message {index} of {len(self)}")
        place = index % len(self)
        if self._place_of is not None:
            place = int(self._place_of[place])
        run = self._runs[bisect.bisect_right(self._starts, place) - 1]
        return Receipt(run.batch, run.index + place - run.start)

    def __iter__(self) -> Iterator[Receipt]:
        return (self[index] for index in range(len(self)))

    def done(self) -> bool:
        """Whether all have their outcome."""
        return all(batch.verdict is not None for batch in _leaves(self._batches()))

    def result(self, timeout: float | None = None) -> Sequence[MessageId]:
        """The ids of all messages, waited for; raises the first error that one of them met."""
        self._wait(timeout)
        failed = next(self._failed(), None)
        if failed is not None:
            failed.result(0)
        return _Ids(self)

    def errors(self, timeout: float | None = None) -> Mapping[int, PenstockError]:
        """The errors of those that were not stored, by their numbers; empty when all were. Waits for all."""
        self._wait(timeout)
        if next(self._failed(), None) is None:
            return {}
        outcomes = ((index, outcome_of(receipt.parcel, receipt.index, 0)) for index, receipt in enumerate(self))
        return {index: outcome for index, outcome in outcomes if isinstance(outcome, PenstockError)}

    def add_done_callback(self, callback: Callable[[BulkReceipt], None]) -> None:
        """Have this called with the receipt once all have their outcome, on the I/O thread; at once if they have."""
        when_all_settled(self._batches(), lambda: callback(self))

    def __await__(self) -> Generator[Any, None, Sequence[MessageId]]:
        yield from AllSettled(self._batches()).__await__()
        return self.result(0)

    def __repr__(self) -> str:
        state = "done" if self.done() else "pending"
        return f"<BulkReceipt of {len(self)} messages in {len(self._runs)} runs, {state}>"

    def _batches(self) -> list[Parcel]:
        return [run.batch for run in self._runs]

    def _wait(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        if not wait_for_all(self._batches(), deadline):
            raise TimeoutError(f"no outcome for all {len(self)} messages within {timeout} s")

    def _failed(self) -> Iterator[Receipt]:
        """Receipts of messages that have an error, one of each batch that has not simply been stored."""
        for run in self._runs:
            if not isinstance(run.batch.verdict, Stored):
                for index in range(run.index, run.index + run.count):
                    if isinstance(outcome_of(run.batch, index, 0), PenstockError):
                        yield Receipt(run.batch, index)
                        break


class _Ids(Sequence[MessageId]):
    """The ids of many stored messages, made when asked for."""

    def __init__(self, receipt: BulkReceipt) -> None:
        self._receipt = receipt

    def __len__(self) -> int:
        return len(self._receipt)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return self._receipt[index].result(0)


def wait_for_all(batches: Sequence[Any], deadline: float | None) -> bool:
    """Wait until these batches, and those that their messages went on in, have their verdicts."""
    for batch in batches:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not wait_for(batch, left):
            return False
        if isinstance(batch.verdict, Moved) and not wait_for_all(batch.verdict.parts, deadline):
            return False
    return True


class AllSettled:
    """The same for `await`."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches

    def __await__(self) -> Generator[Any, None, None]:
        for batch in self._batches:
            yield from until_settled(batch)
            if isinstance(batch.verdict, Moved):
                yield from AllSettled(batch.verdict.parts).__await__()


def when_all_settled(batches: Sequence[Any], told: Callable[[], None]) -> None:
    """The same for a callback, told once, on the thread that settles the last; at once if all are."""
    numbers = itertools.count(1)  # counting so is one step for any thread

    def one_settled(batch: Any) -> None:
        if isinstance(batch.verdict, Moved):
            when_all_settled(batch.verdict.parts, one_more)
        else:
            one_more()

    def one_more() -> None:
        if next(numbers) == len(batches):
            told()

    for batch in batches:
        listen(batch, (partial(one_settled, batch), None))
    if not batches:
        told()


def _leaves(batches: Sequence[Any]) -> Iterator[Any]:
    for batch in batches:
        if isinstance(batch.verdict, Moved):
            yield from _leaves(batch.verdict.parts)
        else:
            yield batch
