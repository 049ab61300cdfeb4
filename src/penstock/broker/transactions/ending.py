"""How a decided transaction ends: step by step, each begun when the one before is durable, each repeated if it fails.

| step    | what is done                                            | after a crash                                |
|---------|---------------------------------------------------------|----------------------------------------------|
| DECIDE  | the page says PREPARE_*                                 | before: the transaction is open as it was    |
| MARK    | a marker is appended to every partition, in one turn    | all are marked again; a second marker says   |
|         |                                                         | nothing, since nothing is open before it     |
| OFFSETS | the groups' waiting offsets are committed, or forgotten | the same again, for those that still wait    |
| SHOW    | every partition shows what counts, all in one turn      | partitions show it as soon as they are read  |
| CLOSE   | the page says COMPLETE_*                                | whoever asks again is told again             |

Who asked is told after CLOSE, when all of it is durable and seen. A partition that is gone needs no marker.

Runs on: the loop thread.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.broker.log.partition import Place
from penstock.broker.refusals import Refusal, Refused, refusal_of
from penstock.broker.transactions.page import Page
from penstock.broker.transactions.seams import Marker, PendingOffsets, Surroundings
from penstock.errors import PenstockError
from penstock.wire.protocol import Partition

GONE: Final = frozenset({Refusal.UNKNOWN_TOPIC, Refusal.UNKNOWN_PARTITION})


class Step(enum.Enum):
    """What is to be done next."""

    MARK = "mark"
    OFFSETS = "offsets"
    CLOSE = "close"


class Ending:
    """The end of one transaction whose decision is durable."""

    def __init__(
        self,
        page: Page,
        broker: Surroundings,
        offsets: PendingOffsets,
        close: Callable[[Callable[[Exception | None], None]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """`close` writes that it is complete, or tells why not; `failed`: `go_on` is to be called again later."""
        self.step = Step.MARK
        self.is_delayed = False
        """Whether a step has failed."""
        self._page = page
        self._marker = Marker(page.producer, page.epoch, page.commits)
        self._broker = broker
        self._offsets = offsets
        self._close = close
        self._failed = failed
        self._left = set(page.partitions)
        self._awaited = 0
        self._trouble: Exception | None = None

    def __repr__(self) -> str:
        return f"<Ending of {self._page.transactional_id}, {self.step.value}, {len(self._left)} to mark>"

    def go_on(self, now_ms: int) -> None:
        """Do the next step, or the one that failed again."""
        if self.step is Step.MARK:
            self._mark(now_ms)
        elif self.step is Step.OFFSETS:
            self._offsets.end_transaction(self._page.producer, self._page.commits, self._offsets_ended)
        else:
            self._close(self._closed)

    def _mark(self, now_ms: int) -> None:
        self._trouble = None
        partitions = sorted(self._left)
        self._awaited = len(partitions) + 1  # and this loop itself
        for partition in partitions:
            done = partial(self._marked, now_ms, partition)
            try:
                self._broker.partition(*partition).mark(self._marker, now_ms, done)
            except Refused as refused:
                done(None if refused.reason in GONE else refused)
            except PenstockError as error:
                done(error)
        self._marked(now_ms, None, None)

    def _marked(self, now_ms: int, partition: Partition | None, outcome: Place | Exception | None) -> None:
        self._awaited -= 1
        if isinstance(outcome, Exception):
            self._trouble = outcome
        elif partition is not None:
            self._left.discard(partition)
        if self._awaited:
            return
        if self._trouble is not None:
            self._failed(refusal_of(self._trouble))
            return
        self.step = Step.OFFSETS
        self.go_on(now_ms)

    def _offsets_ended(self, error: Exception | None) -> None:
        if error is not None:
            self._failed(refusal_of(error))
            return
        self._show()
        self.step = Step.CLOSE
        self._close(self._closed)

    def _show(self) -> None:
        for partition in self._page.partitions:
            try:
                self._broker.partition(*partition).release(self._page.producer)
            except PenstockError:
                continue  # it is gone, or shows it when it is opened again

    def _closed(self, error: Exception | None) -> None:
        if error is not None:
            self._failed(refusal_of(error))
