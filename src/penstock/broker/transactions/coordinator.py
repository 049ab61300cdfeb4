"""The coordinator of transactions: who may write under a transactional id, what belongs to its transaction, its end.

What each step means is told in `page`, what may happen beside each other in `transaction`, how an end comes about in
`ending`. Whoever cannot be served is `Refused` at once, and its callback is not called; otherwise it is called exactly
once, when what was asked for is durable.

A transaction that is open for longer than its owner said is aborted, and the owner loses its epoch. Deadlines are
counted anew after a restart: how long the process was away is nobody's fault.

Must never ask a clock, nor know a protocol. Runs on: the loop thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

from penstock.broker.groups.deadlines import Deadlines
from penstock.broker.producers import PartitionProducers
from penstock.broker.refusals import Refusal, Refused
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import Store
from penstock.broker.transactions.books import Books, check_name
from penstock.broker.transactions.ending import Ending
from penstock.broker.transactions.ids import ProducerIds
from penstock.broker.transactions.orphans import Orphans
from penstock.broker.transactions.page import EndVerdict, Page
from penstock.broker.transactions.seams import Enlisting, NoOffsets, PendingOffsets, Surroundings
from penstock.broker.transactions.transaction import Told, Transaction
from penstock.wire.entry import EntryFlag, EntryHeader
from penstock.wire.protocol import Identity, Partition

_log = logging.getLogger("penstock.broker")

RETRY_S: Final = 0.5
SWEEP_S: Final = 3600.0

Reply: TypeAlias = Callable[[Exception | None], None]


class Transactions:
    """All transactional ids of a broker, and the ids of its producers."""

    def __init__(
        self, store: Store, broker: Surroundings, settings: BrokerSettings, offsets: PendingOffsets | None = None
    ) -> None:
        """Read what is written down; `start` goes on with it."""
        self.offsets: PendingOffsets = offsets or NoOffsets()
        self._broker = broker
        self._settings = settings
        self._ids = ProducerIds(store)
        self._books = Books(store)
        self._deadlines: Deadlines[str] = Deadlines()
        self._orphans = Orphans(broker, self._books.owner_of, self._take_up)
        self._now, self._now_ms = 0.0, 0
        self._sweep_at = 0.0

    def __repr__(self) -> str:
        return f"<Transactions of {len(self._books)} ids, {len(self._deadlines)} open>"

    def start(self, now: float, now_ms: int) -> None:
        """Go on with what was being ended. Call when partitions can be opened."""
        self._tick(now, now_ms)
        self._sweep_at = now + self._sweep_s
        under_way = set()
        for transaction in self._books:
            page = transaction.page
            if page.is_open:
                self._set_deadline(page)
            if page.is_decided:
                self._start_ending(transaction)
            if not page.is_at_rest:
                under_way.add(page.producer)
        for producer in set(self.offsets.producers()) - under_way:
            self.offsets.end_transaction(producer, commit=False)

    @property
    def is_ending(self) -> bool:
        """Whether any transaction is being ended, as after a start."""
        return any(transaction.ending is not None for transaction in self._books)

    def turn(self, now: float, now_ms: int) -> float | None:
        """Abort what has been open for too long, try again what failed, forget what is unused; when to come back."""
        self._tick(now, now_ms)
        for transactional_id in self._deadlines.due(now):
            self._due(self._books.find(transactional_id))
        if now >= self._sweep_at:
            self._sweep_at = now + self._sweep_s
            self._forget_unused()
        dues = (self._deadlines.next(), self._orphans.turn(now, now_ms), self._sweep_at if self._books else None)
        return min((due for due in dues if due is not None), default=None)

    # Who has an id

    def identify(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        current: Identity | None,
        now: float,
        now_ms: int,
        reply: Told,
    ) -> None:
        """Who a producer is from now on; takes the transactional id from whoever had it, and aborts what was open.

        `current`: only for who has it, or who had it before and missed the answer.
        """
        self._tick(now, now_ms)
        if transactional_id is None:
            self._ids.take(lambda taken: reply(taken if isinstance(taken, Exception) else Identity(taken, 0)))
            return
        transaction = self._books.get(transactional_id)
        most = self._settings.transaction_timeout_max_ms
        if not 0 < timeout_ms <= most:
            raise Refused(Refusal.BAD_TRANSACTION_TIMEOUT, f"a transaction may take 1 to {most} ms, not {timeout_ms}")
        if transaction is None:
            transaction = self._books.add(transactional_id, timeout_ms)
            self._ids.take(partial(self._created, transaction, reply))
            return
        transaction.check_free()
        transaction.page.check_current(current)
        if transaction.page.is_open:
            told = partial(self._identify_aborted, transaction, timeout_ms, current, reply)
            self._begin_end(transaction, told, commit=False, renews=True)
        else:
            self._identify(transaction, timeout_ms, current, reply)

    def _created(self, transaction: Transaction, reply: Told, taken: int | Exception) -> None:
        if isinstance(taken, Exception):
            self._books.drop(transaction)
            reply(taken)
            return
        blank = transaction.page
        page = Page(blank.transactional_id, taken)
        self._books.save(transaction, page.identified(blank.timeout_ms, None, taken, self._now_ms), reply)

    def _identify_aborted(
        self,
        transaction: Transaction,
        timeout_ms: int,
        current: Identity | None,
        reply: Told,
        outcome: Identity | Exception,
    ) -> None:
        """What was open is aborted, which gave the id another epoch: that one is for who had it before."""
        if isinstance(outcome, Exception):
            reply(outcome)
            return
        try:
            transaction.check_free()
            self._identify(transaction, timeout_ms, current, reply)
        except Refused as refused:
            reply(refused)

    def _identify(self, transaction: Transaction, timeout_ms: int, current: Identity | None, reply: Told) -> None:
        page = transaction.page
        if not page.is_exhausted:
            self._books.save(transaction, page.identified(timeout_ms, current, page.producer, self._now_ms), reply)
            return

        def taken(fresh: int | Exception) -> None:
            transaction.pending = None
            if isinstance(fresh, Exception):
                reply(fresh)
            else:
                self._books.save(transaction, page.identified(timeout_ms, current, fresh, self._now_ms), reply)

        transaction.pending = page
        self._ids.take(taken)

    # The way of an entry, and of offsets

    def admit(
        self,
        header: EntryHeader,
        partition: Partition,
        transactional_id: str | None,
        joins: bool,
        now: float,
        now_ms: int,
    ) -> Enlisting | None:
        """Whether an entry may be stored for its producer; Refused otherwise.

        `joins`: a partition becomes part of the transaction by it, and need not have been enlisted before.
        """
        if not isinstance(header.producer, int):
            return None
        if not header.flags & EntryFlag.TRANSACTIONAL:
            self._check_outside(header.producer, header.epoch)
            return None
        self._tick(now, now_ms)
        transaction = self._books.find(transactional_id or "")
        transaction.check_writer(header.producer, header.epoch)
        if transaction.holds(partition):
            return None
        if not joins and not (transaction.page.is_open and partition in transaction.page.partitions):
            raise Refused(Refusal.NOT_ENLISTED, f"{partition} is not part of the transaction of {transactional_id}")
        return self._enlist(transaction, (partition,))

    def admit_group(
        self, transactional_id: str, identity: Identity, group: str, joins: bool, now: float, now_ms: int
    ) -> Enlisting | None:
        """The same for a group's offsets."""
        self._tick(now, now_ms)
        transaction = self._books.find(transactional_id)
        transaction.check_writer(identity.producer, identity.epoch)
        if transaction.holds_group(group):
            return None
        if not joins and not (transaction.page.is_open and group in transaction.page.groups):
            text = f"the group {group} is not part of the transaction of {transactional_id}"
            raise Refused(Refusal.NOT_ENLISTED, text)
        return self._enlist(transaction, (), (group,))

    def _check_outside(self, producer: int, epoch: int) -> None:
        """Refuse an entry outside of transactions whose producer id belongs to somebody else now."""
        owner = self._books.owner_of(producer)
        if owner is not None and (producer, epoch) != (owner.page.producer, owner.page.epoch):
            text = f"producer {producer} has the transactional id {owner.page.transactional_id} no longer"
            raise Refused(Refusal.STALE_EPOCH, text)

    def adopt(self, partition: Partition, producers: PartitionProducers, now: float, now_ms: int) -> None:
        """A partition was opened, with these producers: see to the transactions that are open in it."""
        self._tick(now, now_ms)
        self._orphans.look(partition, producers)

    # What belongs to a transaction

    def enlist(
        self,
        transactional_id: str,
        identity: Identity,
        partitions: Sequence[Partition],
        now: float,
        now_ms: int,
        reply: Reply,
    ) -> None:
        """Make partitions part of the transaction, which begins with the first."""
        self._tick(now, now_ms)
        transaction = self._books.owned(transactional_id, identity)
        if all(transaction.holds(partition) for partition in partitions):
            reply(None)
        else:
            _reply_when(self._enlist(transaction, partitions), reply)

    def enlist_group(
        self, transactional_id: str, identity: Identity, group: str, now: float, now_ms: int, reply: Reply
    ) -> None:
        """Make a group's offsets part of the transaction."""
        self._tick(now, now_ms)
        transaction = self._books.owned(transactional_id, identity)
        if transaction.holds_group(group):
            reply(None)
        else:
            _reply_when(self._enlist(transaction, (), (group,)), reply)

    def verify(self, transactional_id: str, identity: Identity, partitions: Iterable[Partition]) -> set[Partition]:
        """Which of these are part of the transaction; Refused when it is not theirs."""
        page = self._books.owned(transactional_id, identity).page
        return set(page.partitions.intersection(partitions)) if page.is_open else set()

    def _enlist(
        self, transaction: Transaction, partitions: Iterable[Partition], groups: Iterable[str] = ()
    ) -> Enlisting:
        was_open = transaction.page.is_open
        transaction.page = transaction.page.enlisted(partitions, groups, self._now_ms)
        if not was_open:
            self._set_deadline(transaction.page)
        return self._books.save_enlisted(transaction)

    def _take_up(self, transaction: Transaction, partition: Partition) -> None:
        self._enlist(transaction, (partition,))

    # Its end

    def end(
        self,
        transactional_id: str,
        identity: Identity,
        commit: bool,
        renews: bool,
        now: float,
        now_ms: int,
        reply: Told,
    ) -> None:
        """Commit or abort; `reply` comes when that is durable and seen in all partitions and groups.

        `renews`: the producer goes on with the identity that it is told, whose epoch is another each time.
        """
        self._tick(now, now_ms)
        transaction = self._books.find(transactional_id)
        verdict = transaction.judge_end(identity, commit, renews)
        if verdict is EndVerdict.TELL:
            reply(transaction.page.identity)
        elif verdict is EndVerdict.WAIT:
            transaction.waiting.append(reply)
        else:
            self._begin_end(transaction, reply, commit, renews)

    def _begin_end(self, transaction: Transaction, told: Told, commit: bool, renews: bool) -> None:
        page = transaction.page
        transaction.waiting.append(told)
        if renews and page.is_exhausted:
            transaction.pending = page
            self._ids.take(partial(self._decide, transaction, commit, renews))
        else:
            self._decide(transaction, commit, renews, page.producer)

    def _decide(self, transaction: Transaction, commit: bool, renews: bool, next_producer: int | Exception) -> None:
        if isinstance(next_producer, Exception):
            transaction.pending = None
            transaction.tell(next_producer)
            return
        page = transaction.page.prepared(commit, renews, next_producer, self._now_ms)
        self._books.save(transaction, page, partial(self._decided, transaction))

    def _decided(self, transaction: Transaction, outcome: Identity | Exception) -> None:
        if isinstance(outcome, Exception):
            transaction.tell(outcome)
            return
        self._deadlines.cancel(transaction.page.transactional_id)
        self._start_ending(transaction)

    def _start_ending(self, transaction: Transaction) -> None:
        close, failed = partial(self._close, transaction), partial(self._delayed, transaction)
        transaction.ending = Ending(transaction.page, self._broker, self.offsets, close, failed)
        transaction.ending.go_on(self._now_ms)

    def _delayed(self, transaction: Transaction, error: Exception) -> None:
        """A step of the end failed: it is tried again, and who waits is told to ask again."""
        if transaction.ending is not None and not transaction.ending.is_delayed:
            _log.warning("%r is tried again every %s s: %s", transaction, RETRY_S, error)
            transaction.ending.is_delayed = True
        self._deadlines.set(transaction.page.transactional_id, self._now + RETRY_S)
        text = f"transactional id {transaction.page.transactional_id}: its end is decided, but delayed: {error}"
        transaction.tell(Refused(Refusal.CONCURRENT_TRANSACTION, text))

    def _close(self, transaction: Transaction, failed: Reply) -> None:
        def told(outcome: Identity | Exception) -> None:
            if isinstance(outcome, Exception):
                failed(outcome)
            else:
                transaction.ending = None
                transaction.tell(outcome)

        self._books.save(transaction, transaction.page.completed(self._now_ms), told)

    # What is due

    def _due(self, transaction: Transaction) -> None:
        if transaction.ending is not None:
            transaction.ending.go_on(self._now_ms)
        elif transaction.page.is_open:
            self._deadlines.set(transaction.page.transactional_id, self._now + RETRY_S)  # cancelled when it is decided
            if not transaction.is_busy:
                _log.info("%r is aborted: its %s ms are over", transaction, transaction.page.timeout_ms)
                self._begin_end(transaction, lambda _outcome: None, commit=False, renews=True)

    def _forget_unused(self) -> None:
        before_ms = self._now_ms - self._settings.transactional_id_expiration_ms
        for transaction in self._books:
            page = transaction.page
            if page.is_at_rest and page.changed_ms <= before_ms and not transaction.is_busy:
                self._books.forget(transaction, self._now_ms)

    @property
    def _sweep_s(self) -> float:
        return min(SWEEP_S, self._settings.transactional_id_expiration_ms / 1000)

    def _set_deadline(self, page: Page) -> None:
        self._deadlines.set(page.transactional_id, self._now + page.timeout_ms / 1000)

    def _tick(self, now: float, now_ms: int) -> None:
        self._now, self._now_ms = now, now_ms

    # What tools ask

    def page(self, transactional_id: str) -> Page:
        """What is known of a transactional id; Refused when nothing is."""
        check_name(transactional_id)
        transaction = self._books.get(transactional_id)
        if transaction is None or transaction.saved is None:
            raise Refused(Refusal.UNKNOWN_TRANSACTION, f"nothing is known of the transactional id {transactional_id}")
        return transaction.page

    def pages(self) -> Iterator[Page]:
        """What is known of all transactional ids, in their order."""
        return (transaction.page for transaction in self._books)


def _reply_when(enlisting: Enlisting, reply: Reply) -> None:
    enlisting.gate(lambda outcome: reply(outcome if isinstance(outcome, Exception) else None))(None)
