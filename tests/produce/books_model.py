"""A cluster that keeps books of transactions, as far as its producers can see it: requests in, answers out, no bytes.

What it answers was taken from a real Kafka, both as it enlists by itself and ends each transaction with a new epoch
(`enlists`), and as it did neither before:

    Identify           another epoch each time; with `current`, only for who had the id last, or asks so again. An open
                       transaction is aborted first, and whoever asked is told to ask again.
    Enlist             by who has the id
    Publish            by who has the id; a partition joins by it, or must have been enlisted. While one request makes
                       partitions join, another that would has to be tried again.
    CommitMarks        the same for groups
    EndTransaction     what was ended the same way before is answered the same way again; what was ended the other way,
                       or never begun, is refused
    after its timeout  a transaction is aborted, and who had it open is fenced from it
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.clock import ManualClock
from penstock.errors import BusyError, FencedError, PenstockError, SequenceError, TransactionError
from penstock.wire.kafka.header import parse_header
from penstock.wire.kafka.records import decode
from penstock.wire.protocol import (
    CommitMarks,
    Done,
    Endpoint,
    EndTransaction,
    Enlist,
    EnlistGroup,
    FindHome,
    Identify,
    Identity,
    Mark,
    Outgoing,
    Partition,
    Publish,
    Request,
    Stored,
    Verdict,
)

REMEMBERED = 5


@dataclass
class Log:
    """One partition."""

    visible: list[bytes] = field(default_factory=list)
    pending: dict[str, list[bytes]] = field(default_factory=dict)
    """What open transactions have stored."""
    end: int = 0
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    """The next number of each identity."""
    last: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)
    """Number and position of the last batches of each identity."""


@dataclass
class Page:
    """What is written down of one transactional id."""

    producer: int
    epoch: int = -1
    last_epoch: int | None = None
    state: str = "empty"
    timeout: float = math.inf
    began: float = 0.0
    partitions: set[Partition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    marks: dict[tuple[str, Partition], Mark] = field(default_factory=dict)

    @property
    def identity(self) -> Identity:
        return Identity(self.producer, self.epoch)


class BooksModel:
    """All that the brokers of a cluster know together."""

    def __init__(self, clock: ManualClock, enlists: bool, nodes: int = 1) -> None:
        self.clock = clock
        self.enlists = enlists
        self.nodes = {number: Endpoint(f"broker{number}", 9092) for number in range(1, nodes + 1)}
        self.topics: dict[str, int] = {}
        self.logs: dict[Partition, Log] = {}
        self.pages: dict[str, Page] = {}
        self.positions: dict[tuple[str, Partition], Mark] = {}
        self.homes: dict[str, int] = {}
        self.asked: list[tuple[int, Request[Any]]] = []
        self.joins = 0
        """Requests that make partitions join and are not answered yet."""
        self.collisions = 0
        self.refusals: list[Callable[[int, Request[Any]], PenstockError | None]] = []
        """Say what is answered instead, for no reason of the model's own."""

    def create(self, topic: str, partitions: int = 1) -> None:
        self.topics[topic] = partitions
        self.logs.update({Partition(topic, number): Log() for number in range(partitions)})

    def leader(self, partition: Partition) -> int | None:
        if partition not in self.logs:
            return None
        return list(self.nodes)[partition.number % len(self.nodes)]

    def visible(self, topic: str, partition: int = 0) -> list[bytes]:
        return self.logs[Partition(topic, partition)].visible

    def kinds(self) -> list[str]:
        """What was asked, by name."""
        return [type(request).__name__ for _, request in self.asked]

    def home(self, name: str) -> int:
        return self.homes.get(name, min(self.nodes))

    def will_join(self, request: Request[Any]) -> bool:
        """Whether a request makes partitions part of a transaction."""
        if not self.enlists or not isinstance(request, Publish) or request.transactional_id is None:
            return False
        page = self.pages.get(request.transactional_id)
        return page is not None and any(outgoing.partition not in page.partitions for outgoing in request.batches)

    def answer(self, node: int, request: Request[Any]) -> Any:
        """What a broker answers; with all effects."""
        self.asked.append((node, request))
        self.expire()
        for refusal in self.refusals:
            error = refusal(node, request)
            if error is not None:
                return _spread(request, error)
        return getattr(self, f"_{type(request).__name__.lower()}")(request)

    def expire(self) -> None:
        """Abort what has been open for too long."""
        for name, page in self.pages.items():
            if page.state == "open" and self.clock.monotonic() > page.began + page.timeout:
                self._close(name, page, commit=False)
                page.epoch, page.last_epoch = page.epoch + 1, page.epoch

    # One method for each request

    def _findhome(self, request: FindHome) -> Any:
        node = self.home(request.name)
        return node, self.nodes[node]

    def _identify(self, request: Identify) -> Any:
        name = request.transactional_id
        assert name is not None
        page = self.pages.setdefault(name, Page(100 + len(self.pages)))
        current = request.current
        is_retry = current is not None and current.epoch == page.last_epoch
        if current is not None and page.epoch >= 0 and current != page.identity and not is_retry:
            return FencedError("taken", "PRODUCER_FENCED")
        if page.state == "open":
            self._close(name, page, commit=False)
            page.epoch, page.last_epoch = page.epoch + 1, None if current is None else page.epoch
            return BusyError("the transaction before is still being completed", "CONCURRENT_TRANSACTIONS")
        page.timeout = request.transaction_timeout_ms / 1000
        if not is_retry:
            page.epoch, page.last_epoch = page.epoch + 1, None if current is None else page.epoch
        page.state = "empty"
        return page.identity

    def _enlist(self, request: Enlist) -> Any:
        assert not self.enlists
        page = self.pages[request.transactional_id]
        if request.identity != page.identity:
            return dict.fromkeys(request.partitions, FencedError("taken", "PRODUCER_FENCED"))
        self._open(page)
        page.partitions.update(request.partitions)
        return {}

    def _enlistgroup(self, request: EnlistGroup) -> Any:
        page = self.pages[request.transactional_id]
        if request.identity != page.identity:
            return FencedError("taken", "PRODUCER_FENCED")
        self._open(page)
        page.groups.add(request.group)
        return Done()

    def _publish(self, request: Publish) -> dict[Partition, Verdict]:
        assert request.transactional_id is not None
        page = self.pages[request.transactional_id]
        return {
            outgoing.partition: self._store(request.transactional_id, page, outgoing) for outgoing in request.batches
        }

    def _store(self, name: str, page: Page, outgoing: Outgoing) -> Verdict:
        batch = bytes(outgoing.header) + bytes(outgoing.payload)
        header = parse_header(batch)
        assert header.attributes & 0x10, "not marked as transactional"
        if (header.producer_id, header.producer_epoch) != (page.producer, page.epoch):
            return FencedError("another epoch", "INVALID_PRODUCER_EPOCH")
        if outgoing.partition not in page.partitions:
            if not self.enlists:
                return TransactionError("not enlisted", "TRANSACTION_ABORTABLE")
            self._open(page)
            page.partitions.add(outgoing.partition)
        log = self.logs[outgoing.partition]
        me = (page.producer, page.epoch)
        last = log.last.setdefault(me, [])
        for sequence, position in last[-REMEMBERED:]:
            if sequence == header.base_sequence:
                return Stored(position)
        if header.base_sequence != log.numbers.get(me, header.base_sequence if not self.enlists and not last else 0):
            return SequenceError("a batch before this one is missing", "OUT_OF_ORDER_SEQUENCE_NUMBER")
        last.append((header.base_sequence, log.end))
        log.numbers[me] = header.base_sequence + header.count
        log.end += header.count
        log.pending.setdefault(name, []).extend(decode(batch).value.to_pylist())
        return Stored(log.end - header.count)

    def _commitmarks(self, request: CommitMarks) -> Any:
        page = self.pages[request.transactional_id]
        if request.identity != page.identity:
            return dict.fromkeys(request.marks, FencedError("another epoch", "INVALID_PRODUCER_EPOCH"))
        if request.group not in page.groups and not self.enlists:
            return dict.fromkeys(request.marks, TransactionError("not enlisted", "TRANSACTION_ABORTABLE"))
        self._open(page)
        page.groups.add(request.group)
        page.marks.update({(request.group, partition): mark for partition, mark in request.marks.items()})
        return {}

    def _endtransaction(self, request: EndTransaction) -> Any:
        page = self.pages[request.transactional_id]
        end = "committed" if request.commit else "aborted"
        if request.identity == page.identity and page.state == "open":
            self._close(request.transactional_id, page, request.commit)
            if self.enlists:
                page.epoch, page.last_epoch = page.epoch + 1, page.epoch
            return page.identity
        again = Identity(page.producer, page.epoch if page.last_epoch is None else page.last_epoch)
        if request.identity not in ((again,) if self.enlists else (page.identity,)):
            if request.identity != page.identity:
                return FencedError("taken", "PRODUCER_FENCED")
            return TransactionError("nothing is open", "INVALID_TXN_STATE")
        if page.state != end:
            return TransactionError(f"it is {page.state}", "INVALID_TXN_STATE")
        return page.identity

    def _open(self, page: Page) -> None:
        if page.state != "open":
            page.state = "open"
            page.began = self.clock.monotonic()

    def _close(self, name: str, page: Page, commit: bool) -> None:
        page.state = "committed" if commit else "aborted"
        for partition in page.partitions:
            values = self.logs[partition].pending.pop(name, [])
            self.logs[partition].visible += values if commit else []
            self.logs[partition].end += 1  # the marker
        if commit:
            self.positions.update(page.marks)
        page.partitions.clear()
        page.groups.clear()
        page.marks.clear()


def _spread(request: Request[Any], error: PenstockError) -> Any:
    """An error as this request's answer has it."""
    if isinstance(request, Publish):
        return {outgoing.partition: error for outgoing in request.batches}
    if isinstance(request, Enlist):
        return dict.fromkeys(request.partitions, error)
    if isinstance(request, CommitMarks):
        return dict.fromkeys(request.marks, error)
    return error


def by_group(positions: Mapping[tuple[str, Partition], Mark]) -> dict[tuple[str, str, int], int]:
    return {(group, *partition): mark.position for (group, partition), mark in positions.items()}
