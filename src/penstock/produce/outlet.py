"""One producer as the I/O thread sees it: its cluster, who it is to it, and whether it can send.

A producer that numbers its messages needs an identity before its first batch leaves. It is asked for in the background,
again after a pause when that failed for a reason that passes. A reason that does not pass fails what waits, and the
next message makes it ask again.

When a lane cannot go on with the identity it has, the producer takes the next epoch of it by itself. Brokers refuse
what still comes of the old one then: a request that lay in a connection given up long ago would otherwise be stored
behind messages that were sent after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.config import BatchIo
from penstock.config.options import Acks
from penstock.errors import FencedError, PenstockError, SequenceError
from penstock.net.asks import Whom
from penstock.net.backoff import Backoff
from penstock.net.cluster import Cluster
from penstock.net.failures import because
from penstock.net.meters import Meter, Meters
from penstock.net.pipeline import Lost, Sent
from penstock.produce.batch import Batch
from penstock.produce.delivery import LaneDelivery
from penstock.produce.kernel import Parcel
from penstock.produce.lanes import Lanes, ProducerLane
from penstock.produce.receipts import announce
from penstock.wire.protocol import Answered, Identify, Identity, Stored, Verdict

EPOCH_MAX = (1 << 15) - 1

_log = logging.getLogger("penstock")


class Outlet:
    """A producer's far side. Runs on: the I/O thread."""

    transactional_id: str | None = None

    def __init__(self, cluster: Cluster, lanes: Lanes, gate: BatchIo, meters: Meters, backoff: Backoff) -> None:
        self.cluster = cluster
        self.lanes = lanes
        self.topic = lanes.topic
        self.gate = gate
        self.meters = meters
        self._meter: Meter | None = None
        self._identity: Identity | None = None
        self.unknown_since: float | None = None
        """Since when the cluster says that there is no such topic."""
        self.trouble: PenstockError | None = None
        """What is in the way, as last told."""
        self.readiness = Parcel(self.topic, -1, lanes.home)
        """Settled when the first lane can be used, or when it turned out that it cannot; then another one begins."""
        self._backoff = backoff
        self._asked = False
        self._ask_at = float("-inf")

    def __repr__(self) -> str:
        return f"<Outlet of {self.topic} to {self.cluster.name}, {self.identity}>"

    @property
    def identity(self) -> Identity | None:
        """Who it is to the cluster, as far as that is known."""
        return self._identity

    @property
    def meter(self) -> Meter:
        """What is counted for its topic; there from its first batch on, unless somebody brings his own."""
        if self._meter is None:
            self._meter = self.meters.of(self.topic)
        return self._meter

    @meter.setter
    def meter(self, meter: Meter) -> None:
        self._meter = meter

    @property
    def needs_identity(self) -> bool:
        """Whether its messages are numbered."""
        return self.lanes.options.idempotence

    def acks_of(self, batch: Batch) -> Acks:
        """Who must have stored a batch."""
        wait = batch.fields.wait_for_store
        return self.lanes.options.acks if wait is None else "all" if wait else "leader"

    def may_launch(self, lane: ProducerLane, now: float) -> bool:
        """Whether batches of this lane may leave now; begins what must come before."""
        if not self.needs_identity:
            return True
        delivery = lane.delivery
        if delivery is not None and delivery.wants_identity and delivery.identity == self._identity:
            self._identity = _next_epoch(self._identity)
        if self._identity is None:
            self.ask_identity(now)
        head = delivery.head if delivery is not None else None
        return self._identity is not None or (head is not None and head.sequence >= 0)

    def launched(self, partition: int) -> None:
        """A batch for this partition has left."""

    def ask_identity(self, now: float) -> None:
        """Ask who this producer is, unless that is asked or known, or must wait."""
        if self._identity is None and not self._asked and now >= self._ask_at and self.needs_identity:
            self._asked = True
            self.cluster.ask(Identify(), IdentityToken(self), Whom.ANYBODY, now)

    def identified(self, answer: Identity | PenstockError, now: float) -> None:
        """The answer came, or none will."""
        self._asked = False
        if isinstance(answer, Identity):
            self._identity = answer
            self._backoff.reset()
            return
        self._ask_at = now + self._backoff.next()
        if not answer.retriable:
            self.fail(answer)

    def next_deadline(self) -> float | None:
        """When asking for an identity may go on."""
        waits = self.needs_identity and self._identity is None and not self._asked and self._backoff.failures
        return self._ask_at if waits else None

    def translate(self, error: PenstockError) -> PenstockError:
        """What a broker's answer to a batch means for this producer."""
        if isinstance(error, FencedError):  # nobody can take the place of a producer without a transactional id
            return because(SequenceError(f"the broker does not know this producer any more: {error}"), error)
        return error

    def landed(self, partition: int, verdict: Verdict) -> None:
        """A batch for this partition was answered so, or will not be."""

    def left(self) -> None:
        """The producer is gone."""

    def became_ready(self) -> None:
        """The first lane can be used."""
        if self.readiness.verdict is None:
            self.readiness.verdict = Stored(None)
            announce(self.readiness)

    def fail(self, error: PenstockError) -> None:
        """All that waits has failed for this reason; the next message tries again."""
        self.fail_readiness(error)
        self.fail_lanes(error)

    def fail_readiness(self, error: PenstockError, for_good: bool = False) -> None:
        """Tell those who wait for it to be ready that it will not be, for this reason; for good: those to come too."""
        readiness = self.readiness
        if readiness.verdict is None or for_good:
            self.readiness = Parcel(self.topic, -1, self.lanes.home)
        if readiness.verdict is None:
            readiness.verdict = error
            announce(readiness)
        if for_good:
            self.readiness.verdict = error

    def fail_lanes(self, error: PenstockError) -> None:
        """Settle all batches with one error."""
        for delivery in self._deliveries():
            for settled in delivery.fail_all(error):
                self.lanes.finish(settled.batch)
        self.lanes.fail_open(error)

    def fail_waiting(self, error: PenstockError) -> None:
        """Settle all batches that are not in flight with one error."""
        for delivery in self._deliveries():
            for settled in delivery.fail_waiting(error):
                self.lanes.finish(settled.batch)
        self.lanes.fail_open(error)

    def is_at_rest(self) -> bool:
        """Whether all batches have their outcome, and none is in flight."""
        return not self.lanes.unsettled and not any(delivery.in_flight for delivery in self._deliveries())

    def is_in_doubt(self) -> bool:
        """Whether a lane can only go on with another identity."""
        return not all(delivery.is_at_rest for delivery in self._deliveries())

    def _deliveries(self) -> list[LaneDelivery]:
        lanes: list[ProducerLane] = list(self.lanes.intake.lanes.values())
        return [lane.delivery for lane in lanes if lane.delivery is not None]


def _next_epoch(identity: Identity | None) -> Identity | None:
    """The same producer, newly numbered; None when it has no more epochs, and must be another one."""
    if identity is None or identity.epoch >= EPOCH_MAX:
        return None
    return Identity(identity.producer, identity.epoch + 1)


class IdentityToken:
    """The question who a producer is."""

    def __init__(self, outlet: Outlet, told: Callable[[Identity | PenstockError, float], None] | None = None) -> None:
        self._told = told or outlet.identified

    def landed(self, event: Answered | Sent | Lost, now: float) -> None:
        """The answer came, or none will."""
        if isinstance(event, Answered):
            self._told(event.answer, now)
        elif isinstance(event, Lost):
            self._told(event.error, now)
