"""All transactional ids: found by name or by producer, read at start, saved, forgotten.

Runs on: the loop thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from penstock.broker.refusals import Refusal, Refused, refusal_of
from penstock.broker.store import Store, drop_transaction, put_transaction
from penstock.broker.transactions.page import Page, unpack
from penstock.broker.transactions.seams import Enlisting
from penstock.broker.transactions.transaction import Draft, Told, Transaction
from penstock.errors import DecodeError
from penstock.wire.protocol import Identity

_log = logging.getLogger("penstock.broker")

IDS_MAX: Final = 100_000


class Books:
    """The transactions of a broker, by their ids."""

    def __init__(self, store: Store) -> None:
        """Read what is written down."""
        self._store = store
        self._all: dict[str, Transaction] = {}
        self._owners: dict[int, Transaction] = {}  # by producer id, present and last
        for transactional_id, state in store.transactions():
            try:
                page = unpack(transactional_id, state)
            except DecodeError as error:
                _log.error("what was written of a transactional id is forgotten: %s", error)
                continue
            self._all[transactional_id] = transaction = Transaction(page, page)
            self._know(transaction)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Transaction]:
        """Those that were given to somebody, by id."""
        return iter([transaction for _, transaction in sorted(self._all.items()) if transaction.saved is not None])

    def get(self, transactional_id: str) -> Transaction | None:
        """What there is of an id, which may not be anybody's yet."""
        check_name(transactional_id)
        return self._all.get(transactional_id)

    def find(self, transactional_id: str) -> Transaction:
        """The transaction of an id that was given; Refused when there is none."""
        transaction = self.get(transactional_id)
        if transaction is None or transaction.saved is None:
            raise Refused(Refusal.WRONG_PRODUCER_ID, f"no producer has the transactional id {transactional_id}")
        return transaction

    def owned(self, transactional_id: str, identity: Identity) -> Transaction:
        """The same, for who has the id, while nothing else is under way."""
        transaction = self.find(transactional_id)
        transaction.page.check_owner(identity)
        transaction.check_free()
        return transaction

    def owner_of(self, producer: int) -> Transaction | None:
        """Whose producer id this is, or was before the present one."""
        return self._owners.get(producer)

    def add(self, transactional_id: str, timeout_ms: int) -> Transaction:
        """An id that nobody has; it is `pending` until it is saved."""
        if len(self._all) >= IDS_MAX:
            raise Refused(Refusal.NOT_ALLOWED, f"there are {IDS_MAX} transactional ids, and no more are taken")
        blank = Page(transactional_id, -1, timeout_ms=timeout_ms)
        transaction = self._all[transactional_id] = Transaction(blank)
        transaction.pending = blank
        return transaction

    def drop(self, transaction: Transaction) -> None:
        """Forget one that could not be saved even once."""
        self._all.pop(transaction.page.transactional_id, None)

    def save(self, transaction: Transaction, page: Page, told: Told) -> None:
        """Make a page durable, and have it hold then."""
        transaction.pending = page
        transaction.draft = None

        def saved(error: Exception | None) -> None:
            transaction.pending = None
            if error is None:
                self._replace(transaction, page)
                told(page.identity)
            else:
                if transaction.saved is None:
                    self.drop(transaction)
                told(refusal_of(error))

        self._store.write(lambda db: put_transaction(db, page.transactional_id, page.pack()), saved)

    def save_enlisted(self, transaction: Transaction) -> Enlisting:
        """Have the present page written, together with others that are about to be."""
        page, draft = transaction.page, transaction.draft
        if draft is not None and (draft.replace(page) or draft.written == page):
            return draft.enlisting
        draft = transaction.draft = Draft(page)
        written = draft

        def saved(error: Exception | None) -> None:
            if error is None:
                transaction.saved = written.written
            if transaction.draft is written:
                transaction.draft = None
            written.enlisting.settle(None if error is None else refusal_of(error))

        self._store.write(draft.write, saved)
        return draft.enlisting

    def forget(self, transaction: Transaction, now_ms: int) -> None:
        """Forget an id that nobody uses."""
        page = transaction.page
        transaction.pending = page.dead(now_ms)

        def forgotten(error: Exception | None) -> None:
            transaction.pending = None
            if error is None:
                self.drop(transaction)
                self._unknow(transaction)

        self._store.write(lambda db: drop_transaction(db, page.transactional_id), forgotten)

    def _replace(self, transaction: Transaction, page: Page) -> None:
        self._unknow(transaction)
        transaction.page = transaction.saved = page
        self._know(transaction)

    def _know(self, transaction: Transaction) -> None:
        for producer in _producers(transaction.page):
            self._owners[producer] = transaction

    def _unknow(self, transaction: Transaction) -> None:
        for producer in _producers(transaction.page):
            self._owners.pop(producer, None)


def _producers(page: Page) -> set[int]:
    return {page.producer} if page.last is None else {page.producer, page.last.producer}


def check_name(transactional_id: str) -> None:
    """Refuse the empty name."""
    if not transactional_id:
        raise Refused(Refusal.BAD_REQUEST, "a transactional id cannot be empty")
