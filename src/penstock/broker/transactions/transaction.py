"""One transactional id at work: its page, what of it is durable, and what is under way.

| under way                | who else comes meanwhile                                                      |
|--------------------------|-------------------------------------------------------------------------------|
| partitions are enlisted  | welcome: enlistings of one turn are written together, later ones after them   |
| `pending` is being saved | must try again, but for who asks for the same end: that one waits             |
| it is being ended        | the same                                                                      |

What enlists holds in memory at once and is durable before anybody is told; everything else holds when it is durable.
So a page in memory is at most ahead by partitions that get a marker they do not need.

Runs on: the loop thread; `Draft.write` on the commit thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeAlias

from penstock.broker.refusals import Refusal, Refused
from penstock.broker.store import put_transaction
from penstock.broker.transactions.ending import Ending
from penstock.broker.transactions.page import EndVerdict, Page
from penstock.broker.transactions.seams import Enlisting
from penstock.wire.protocol import Identity, Partition

Told: TypeAlias = Callable[[Identity | Exception], None]


class Draft:
    """A page that is about to be written, and may be replaced until it is."""

    __slots__ = ("_slot", "enlisting", "written")

    def __init__(self, page: Page) -> None:
        self.enlisting = Enlisting()
        self.written = page
        self._slot = [page]

    def replace(self, page: Page) -> bool:
        """Write this one instead; False when it is too late."""
        try:
            self._slot[0] = page  # at once, or not at all: the other thread pops it
        except IndexError:
            return False
        return True

    def write(self, db: sqlite3.Connection) -> None:
        """The statement."""
        self.written = self._slot.pop()
        put_transaction(db, self.written.transactional_id, self.written.pack())


class Transaction:
    """One transactional id."""

    __slots__ = ("draft", "ending", "page", "pending", "saved", "waiting")

    def __init__(self, page: Page, saved: Page | None = None) -> None:
        self.page = page
        self.saved = saved
        """What is durable; None for an id that nobody was given yet."""
        self.pending: Page | None = None
        """What the page becomes when that is durable."""
        self.draft: Draft | None = None
        """Enlistings on their way."""
        self.ending: Ending | None = None
        self.waiting: list[Told] = []
        """Who waits for the end."""

    def __repr__(self) -> str:
        words = [self.page.state.value, f"producer {self.page.producer} at epoch {self.page.epoch}"]
        words += ["being saved"] * (self.pending is not None) + [f"{self.ending!r}"] * (self.ending is not None)
        return f"<Transaction {self.page.transactional_id}, {', '.join(words)}>"

    @property
    def is_busy(self) -> bool:
        """Whether only who asks for what is under way can be served."""
        return self.pending is not None or self.ending is not None

    def check_free(self) -> None:
        """Refuse whoever comes while something is under way."""
        if self.is_busy or self.page.is_decided:
            raise self._busy()

    def _busy(self) -> Refused:
        text = f"transactional id {self.page.transactional_id}: something else is under way; try again"
        return Refused(Refusal.CONCURRENT_TRANSACTION, text)

    def check_writer(self, producer: int, epoch: int) -> None:
        """Refuse entries and offsets of who has not the id; a newer owner shows as in a partition, by its epoch."""
        page = self.page
        if producer != page.producer:
            text = f"transactional id {page.transactional_id} belongs to another producer than {producer}"
            raise Refused(Refusal.WRONG_PRODUCER_ID, text)
        if epoch != page.epoch:
            text = f"transactional id {page.transactional_id} is at epoch {page.epoch}, not {epoch}"
            raise Refused(Refusal.STALE_EPOCH, text)
        self.check_free()

    def holds(self, partition: Partition) -> bool:
        """Whether it is durable that the partition is part of the open transaction."""
        saved = self.saved
        return saved is not None and saved.is_open and partition in saved.partitions

    def holds_group(self, group: str) -> bool:
        """The same for a group."""
        saved = self.saved
        return saved is not None and saved.is_open and group in saved.groups

    def judge_end(self, identity: Identity, commit: bool, renews: bool) -> EndVerdict:
        """What becomes of somebody who wants the transaction ended; Refused when that cannot be now."""
        if self.pending is None:
            return self.page.judge_end(identity, commit, renews)
        if not self.page.is_decided and self.pending.is_decided:
            try:
                return self.pending.judge_end(identity, commit, renews)
            except Refused:
                raise self._busy() from None
        if self.page.is_decided:
            return self.page.judge_end(identity, commit, renews)
        raise self._busy()

    def tell(self, outcome: Identity | Exception) -> None:
        """Tell everybody who waits for the end."""
        waiting, self.waiting = self.waiting, []
        for told in waiting:
            told(outcome)
