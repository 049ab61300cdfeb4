"""Transactions as users see them, and the producers that send within them.

    with producer.transaction() as transaction:
        producer.send(b"...")
        transaction.send_offsets({("orders", 0): 42}, group="billing")

What the block has sent becomes visible at its end, all of it at once, together with the positions; an exception that
leaves the block aborts. All producers of a client that name the same transactional id take part.

A receipt tells that its message is stored as a part of the transaction. Whether anybody will see it is decided by the
end of the block.

Runs on: any thread, but for the outlet.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType

from penstock.config import BatchIo, ProducerOptions
from penstock.errors import ConfigError, PenstockError, TransactionStateError
from penstock.net.loop import Loop
from penstock.net.meters import Meters
from penstock.produce.lanes import Lanes, ProducerLane
from penstock.produce.outlet import Outlet
from penstock.produce.transactions.keeper import KeeperParts, TransactionKeeper
from penstock.wire.protocol import NO_MEMBER, GroupMember, Identity, Mark, Partition, Verdict

_log = logging.getLogger("penstock")


class TransactionalOutlet(Outlet):
    """The far side of a producer with a transactional id. Runs on: the I/O thread."""

    def __init__(
        self, keeper: TransactionKeeper, lanes: Lanes, gate: BatchIo, meters: Meters, parts: KeeperParts
    ) -> None:
        super().__init__(keeper.cluster, lanes, gate, meters, parts.backoff())
        self.keeper = keeper
        self.transactional_id = keeper.transactional_id

    @property
    def identity(self) -> Identity | None:
        """Who its transactional id is to the cluster."""
        return self.keeper.identity

    def may_launch(self, lane: ProducerLane, now: float) -> bool:
        """Whether batches of this lane may leave now."""
        return self.keeper.may_launch(Partition(self.topic, lane.partition), lane.delivery)

    def launched(self, partition: int) -> None:
        """A batch for this partition has left."""
        self.keeper.launched(Partition(self.topic, partition))

    def ask_identity(self, now: float) -> None:
        """See to it that there is an identity."""
        self.keeper.start(now)

    def next_deadline(self) -> float | None:
        """The keeper's own."""
        return None

    def translate(self, error: PenstockError) -> PenstockError:
        """What a broker's answer to a batch means."""
        return self.keeper.meaning(error)

    def landed(self, partition: int, verdict: Verdict) -> None:
        """A batch for this partition was answered so, or will not be."""
        self.keeper.landed(Partition(self.topic, partition), verdict)

    def left(self) -> None:
        """The producer is gone."""
        self.keeper.leave(self)


class Keepers:
    """The transactional ids of one client."""

    def __init__(self, parts: KeeperParts) -> None:
        self._parts = parts
        self._lock = threading.Lock()  # guards the following
        self._keepers: dict[str, TransactionKeeper] = {}

    def __repr__(self) -> str:
        return f"<Keepers of {', '.join(self._keepers) or 'nothing'}>"

    def outlet(self, lanes: Lanes, gate: BatchIo, meters: Meters) -> TransactionalOutlet:
        """The far side of a producer whose options name a transactional id."""
        try:
            with self._lock:
                while True:
                    keeper = self._keeper(lanes.options)
                    outlet = TransactionalOutlet(keeper, lanes, gate, meters, self._parts)
                    if keeper.join(outlet):
                        return outlet
                    del self._keepers[keeper.transactional_id]
        except ConfigError:
            lanes.leave()
            raise

    def _keeper(self, options: ProducerOptions) -> TransactionKeeper:
        name = options.transactional_id
        if not name:
            raise ConfigError(f"transactional_id: expected a name, found {name!r}")
        keeper = self._keepers.get(name)
        if keeper is None:
            keeper = self._keepers[name] = TransactionKeeper(self._parts, name, options)
        if keeper.timeout * 1000 != options.transaction_timeout_ms:
            raise ConfigError(
                f"transaction_timeout_ms={options.transaction_timeout_ms}: another producer with the id {name!r} has "
                f"{keeper.timeout * 1000}, and they share their transactions: give both the same"
            )
        return keeper


class TransactionCore:
    """One transaction without its face: what does not depend on how one waits."""

    def __init__(self, outlet: Outlet) -> None:
        if not isinstance(outlet, TransactionalOutlet):
            raise ConfigError(
                f"the producer of {outlet.topic} has no transactional_id, which transactions need: give it one"
            )
        self._outlet = outlet
        self._keeper = outlet.keeper
        self._opening: Future[None] | None = None
        self._is_ended = False
        self._marks: dict[tuple[str, GroupMember], dict[Partition, Mark]] = {}

    def __repr__(self) -> str:
        state = "ended" if self._is_ended else "open" if self.is_open else "not open"
        return f"<Transaction of {self._keeper.transactional_id}, {state}>"

    @property
    def is_open(self) -> bool:
        """Whether messages are sent within it now."""
        opening = self._opening
        if opening is None or self._is_ended or not opening.done() or opening.cancelled():
            return False
        return opening.exception() is None

    def send_offsets(
        self,
        positions: Mapping[tuple[str, int], int | Mark],
        group: str,
        member: GroupMember = NO_MEMBER,
    ) -> None:
        """Commit positions of a group with this transaction: of each partition the next one to be read.

        `member` says who commits; a group that has members takes it from one of them only. Said again for a partition
        the later position holds.
        """
        self._check_open()
        checked = {_partition(where): _mark(position) for where, position in positions.items()}
        if not isinstance(group, str) or not group:
            raise ConfigError(f"group: expected a name, found {group!r}")
        if not isinstance(member, GroupMember):
            raise ConfigError(f"member: expected a GroupMember, found {type(member).__name__}")
        if checked:
            self._marks.setdefault((group, member), {}).update(checked)

    def begin(self) -> Future[None]:
        """Open it; done when messages are taken. A transaction is begun once."""
        if self._opening is not None:
            raise TransactionStateError(f"{self!r} cannot be begun again: make another one")
        self._opening = self._keeper.begin(self._outlet)
        return self._opening

    def withdraw(self) -> None:
        """Whoever began it does not wait for it to be open any more."""
        if self._opening is not None and not self._opening.cancel() and self.is_open:
            self.roll_back()

    def commit(self) -> Future[None]:
        """End it so that all of it can be seen, or, where that fails, nothing."""
        return self._end(lambda: self._keeper.commit(self._marks))

    def roll_back(self) -> Future[None]:
        """End it so that nothing of it can be seen."""
        return self._end(self._keeper.roll_back)

    def tell_not_aborted(self, error: BaseException, failure: PenstockError) -> None:
        """What left the block goes on; that it could not be aborted is only told."""
        _log.warning("%r was not aborted after %r, which the broker will do in time: %s", self, error, failure)

    def _end(self, how: Callable[[], Future[None]]) -> Future[None]:
        self._check_open()
        self._is_ended = True
        return how()

    def _check_open(self) -> None:
        if not self.is_open:
            raise TransactionStateError(f"{self!r}: nothing can be done in it any more, or not yet")


class Transaction(TransactionCore):
    """A block whose messages become visible all at once, or never; made by `producer.transaction()`."""

    def __init__(self, outlet: Outlet, loop: Loop) -> None:
        super().__init__(outlet)
        self._loop = loop

    def __enter__(self) -> Transaction:
        self._loop.check_may_wait()
        try:
            self.begin().result()
        except BaseException:
            self.withdraw()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_open:
            return
        self._loop.check_may_wait()
        if error is None:
            self.commit().result()
            return
        try:
            self.roll_back().result()
        except PenstockError as failure:
            self.tell_not_aborted(error, failure)

    def abort(self) -> None:
        """End it here so that nothing of it can be seen; the rest of the block sends nothing."""
        self._loop.check_may_wait()
        self.roll_back().result()


def _partition(where: object) -> Partition:
    match where:
        case (str(topic), int(number)) if topic and number >= 0:
            return Partition(topic, number)
    raise ConfigError(f"positions: expected a topic and the number of a partition, found {where!r}")


def _mark(position: object) -> Mark:
    mark = position if isinstance(position, Mark) else Mark(position) if isinstance(position, int) else None
    if mark is None or not isinstance(mark.position, int) or mark.position < 0 or not isinstance(mark.note, str):
        raise ConfigError(f"positions: expected a number from 0 on, or a Mark with one, found {position!r}")
    return mark
