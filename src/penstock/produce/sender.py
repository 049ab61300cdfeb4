"""Sealed batches to brokers, and their answers back to receipts: the producers' part in each turn of the loop.

In one turn, after the clusters have read and answers were handled:

    take      sealed batches from the lanes' queues, in order
    seal      open batches whose delay is over, of senders that are idle
    expire    batches whose time is up
    launch    what can leave: batches of many lanes in one request per broker, as long as its connection has room
    seal      what stayed open only because others had to leave first

Lanes that wait for a leader, for their pause after a failure or for an answer harm no others: they are passed over.

Runs on: the I/O thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from penstock.config import IDEMPOTENT_IN_FLIGHT_MAX, BatchIo, ClientOptions, ProducerOptions
from penstock.config.options import Acks
from penstock.errors import (
    BatchTooLargeError,
    ExpiredError,
    PenstockError,
    UnknownTopicError,
)
from penstock.net.backoff import RandomSource, earliest, pause
from penstock.net.cluster import Cluster, ClusterEvent
from penstock.net.failures import because
from penstock.net.gate import AT_ONCE
from penstock.net.links import Connected, Unreachable
from penstock.net.meters import Meter, Share
from penstock.net.pipeline import Lost, Pipeline, Sent
from penstock.net.topology import TopicChanged, TopicFailed
from penstock.produce import undesignated
from penstock.produce.accumulator import Accumulator
from penstock.produce.batch import Batch, State
from penstock.produce.delivery import Division, LaneDelivery, Settled, undivided
from penstock.produce.lanes import UNDESIGNATED, Lanes, ProducerLane, as_ours
from penstock.produce.outlet import Outlet
from penstock.produce.receipts import blame
from penstock.produce.regroup import Arrivals, halves, regroup, without
from penstock.wire.protocol import Answered, NodeId, Outgoing, Partition, Publish, Spoilt, Stored, Verdict

IDLE_CHECKS: Final = 4
"""How often in `lane_idle_ms` idle lanes are looked for."""


class Flight:
    """Batches of several lanes in one request."""

    __slots__ = ("_sender", "batches")

    def __init__(self, sender: Sender, batches: Sequence[tuple[ProducerLane, Batch]]) -> None:
        self._sender = sender
        self.batches = batches

    def landed(self, event: Answered | Sent | Lost, now: float) -> None:
        """The request has its outcome, and with it each batch."""
        for lane, batch in self.batches:
            self._sender.land(lane, batch, _verdict(event, Partition(batch.topic, batch.partition)), now)

    def __repr__(self) -> str:
        return f"<Flight of {len(self.batches)} batches>"


class Terms(NamedTuple):
    """What batches of one request must agree on."""

    acks: Acks
    transactional_id: str | None
    gate: BatchIo
    """How long the request may wait for others: nobody's batch waits longer than he allows."""

    @classmethod
    def of(cls, outlet: Outlet, batch: Batch) -> Terms:
        """The terms on which a batch may leave."""
        return cls(outlet.acks_of(batch), outlet.transactional_id, outlet.gate)


class Sender:
    """All producers of one client, on all its clusters."""

    def __init__(self, accumulator: Accumulator, options: ClientOptions, random: RandomSource) -> None:
        self._accumulator = accumulator
        self._options = options
        self._random = random
        self._outlets: dict[Lanes, Outlet] = {}
        self._busy: dict[ProducerLane, None] = {}  # lanes with batches to be sent
        self._expire_at = float("inf")
        self._drop_at = float("-inf")
        self.flushing = 0
        """How many wait for all that they have sent; meanwhile no frame waits in a gate."""

    def __repr__(self) -> str:
        return f"<Sender of {len(self._outlets)} producers, {len(self._busy)} lanes to send>"

    # Producers come and go

    def attach(self, outlet: Outlet, now: float) -> None:
        """A producer begins: its topic is looked up and its first lane opened, so that errors show early."""
        self._outlets[outlet.lanes] = outlet
        self._look_up(outlet, now)
        outlet.ask_identity(now)
        self._designate(outlet)
        self._maybe_ready(outlet, now)

    def detach(self, outlet: Outlet, error: PenstockError) -> None:
        """A producer ends: what it still has gets this error."""
        outlet.fail(error)
        if self._outlets.pop(outlet.lanes, None) is not None:
            outlet.left()
            outlet.lanes.leave()
            if not self._outlets_of(outlet.cluster, outlet.topic):
                outlet.meters.forget(outlet.topic)
        for lane in [lane for lane in self._busy if lane.owner is outlet.lanes]:
            del self._busy[lane]

    def abort(self, error: PenstockError) -> None:
        """The loop has ended: nobody would take what is sent from now on."""
        for outlet in list(self._outlets.values()):
            outlet.lanes.close(error)
            self.detach(outlet, error)

    # What happened

    def handle(self, cluster: Cluster, event: ClusterEvent, now: float) -> None:
        """News of a cluster."""
        if isinstance(event, TopicChanged):
            for outlet in self._outlets_of(cluster, event.topic):
                outlet.unknown_since = None
                self._designate(outlet)
                self._maybe_ready(outlet, now)
        elif isinstance(event, TopicFailed):
            for outlet in self._outlets_of(cluster, event.topic):
                self._topic_failed(outlet, event.error, now)
        elif isinstance(event, Connected):
            for outlet in self._outlets_of(cluster):
                self._maybe_ready(outlet, now)
        elif isinstance(event, Unreachable):
            for outlet in self._outlets_of(cluster):
                outlet.trouble = event.error

    def land(self, lane: ProducerLane, batch: Batch, verdict: Verdict, now: float) -> None:
        """A batch in flight was answered, or will not be."""
        outlet = self._outlets.get(lane.owner)
        if outlet is None or lane.delivery is None:
            return  # its producer has ended, and told its receipts so
        if isinstance(verdict, PenstockError):
            verdict = outlet.translate(verdict)
            if verdict.refresh_metadata:
                outlet.cluster.refresh(outlet.topic)
        self._finish(lane, lane.delivery.land(batch, verdict, now))
        if lane.delivery.has_waiting:
            self._busy[lane] = None
        else:
            self._after_launch(lane)  # a batch may have been left open because this one seemed to wait
        outlet.landed(lane.partition, verdict)

    # The turn

    def work(self, now: float) -> float | None:
        """Do what is due; when to come back at the latest."""
        self._take(now)
        for lane, batch in self._accumulator.due(now):
            lane.owner.due(lane, batch)
        self._take(now)
        if now >= self._expire_at:
            self._expire(now)
        if now >= self._drop_at:
            self._drop_idle(now)
        held_until = self._launch(now) if self._busy else None
        for outlet in self._outlets.values():
            self._maybe_ready(outlet, now)
        deadlines = [self._accumulator.next_deadline(), self._expire_at, self._drop_at, held_until]
        deadlines += [self._ask_again(outlet, now) for outlet in self._outlets.values()]
        if self._accumulator.sealed:
            deadlines.append(now)
        return earliest(deadlines)

    def _ask_again(self, outlet: Outlet, now: float) -> float | None:
        """Go on asking for what a producer's messages wait for; when to ask next who it is."""
        if UNDESIGNATED in outlet.lanes.intake.lanes:
            self._look_up(outlet, now)  # a topic that is not wanted any more is forgotten
        deadline = outlet.next_deadline()
        if deadline is None or deadline > now:
            return deadline
        outlet.ask_identity(now)
        return outlet.next_deadline()

    def _take(self, now: float) -> None:
        """Move sealed batches from their lanes' queues into delivery."""
        sealed = self._accumulator.sealed
        while sealed:
            lane = sealed.popleft()
            outlet = self._outlets.get(lane.owner)
            if outlet is None:
                continue
            if lane.partition == UNDESIGNATED:
                self._wait_for_topic(outlet, lane, now)
                continue
            delivery = lane.delivery or self._open(lane)
            while lane.queue and lane.queue[0].state is not State.OPEN:
                batch = lane.queue[0]
                if batch.verdict is None:
                    delivery.add(batch)  # before it leaves the queue, so that the lane never looks empty
                    self._expire_at = min(self._expire_at, batch.expires_at)
                lane.queue.popleft()
            if delivery.has_waiting:
                self._busy[lane] = None
                self._look_up(outlet, now)
            else:  # what it had could not be sealed
                lane.owner.seal_overdue(lane)

    def _in_flight_max(self, options: ProducerOptions) -> int:
        """Batches of one lane in flight: brokers remember only the last few of each producer in a partition."""
        most = self._options.in_flight_max
        return min(most, IDEMPOTENT_IN_FLIGHT_MAX) if options.idempotence else most

    def _wait_for_topic(self, outlet: Outlet, lane: ProducerLane, now: float) -> None:
        """Messages wait for a topic to be known: see to it that it is asked for."""
        self.look_again(outlet, now)
        for batch in (*lane.queue, *list(lane.open.values())):
            self._expire_at = min(self._expire_at, batch.expires_at)

    def _open(self, lane: ProducerLane) -> LaneDelivery:
        forwards = lane.owner.forwards
        delivery = LaneDelivery(
            self._in_flight_max(lane.owner.options),
            self._pause,
            undivided if forwards else lambda batch, verdict: self._divide(lane, batch, verdict),
            fences=forwards,
        )
        memory = lane.owner.memories.pop(lane.partition, None)
        if memory is not None:
            delivery.remember(memory)
        lane.delivery = delivery
        return delivery

    def _launch(self, now: float) -> float | None:
        """Send what can leave; until when lanes are held that could otherwise."""
        held_until: list[float] = []
        brokers: dict[tuple[Cluster, NodeId], list[ProducerLane]] = {}
        for lane in list(self._busy):
            outlet, delivery = self._outlets[lane.owner], lane.delivery
            if delivery is None or not delivery.has_waiting:  # what it had has failed meanwhile
                self._after_launch(lane)
                continue
            ready_at = delivery.ready_at()
            if ready_at is None:
                continue
            if ready_at > now:
                held_until.append(ready_at)
            elif outlet.may_launch(lane, now):
                leader = outlet.cluster.leader(Partition(outlet.topic, lane.partition))
                if leader is None:
                    self._look_up(outlet, now)
                    outlet.cluster.refresh(outlet.topic)
                else:
                    brokers.setdefault((outlet.cluster, leader), []).append(lane)
        for (cluster, leader), lanes in brokers.items():
            pipeline = cluster.connection(leader, now)
            if pipeline is not None:
                self._launch_to(pipeline, lanes, now)
        return min(held_until, default=None)

    def _launch_to(self, pipeline: Pipeline, lanes: list[ProducerLane], now: float) -> None:
        """Send batches of these lanes to their broker until there is no more room, or no more to send."""
        while lanes and pipeline.has_room(now):
            flight = self._collate(lanes, now)
            if not flight:
                return
            self._submit(pipeline, flight, now)
            for lane, _ in flight:
                self._after_launch(lane)
            sent = {lane for lane, _ in flight}
            lanes = [*(lane for lane in lanes if lane not in sent), *(lane for lane, _ in flight)]

    def _collate(self, lanes: Iterable[ProducerLane], now: float) -> list[tuple[ProducerLane, Batch]]:
        """The batches of one request: one of each partition, of lanes that agree on its terms, within its size."""
        flight: list[tuple[ProducerLane, Batch]] = []
        terms: Terms | None = None
        partitions: set[tuple[str, int]] = set()
        size = 0
        for lane in lanes:
            outlet, delivery = self._outlets[lane.owner], lane.delivery
            head = delivery.head if delivery is not None else None
            if delivery is None or head is None or (outlet.topic, lane.partition) in partitions:
                continue
            asked = Terms.of(outlet, head)
            full = size + head.reserved > self._options.request_bytes_max
            if (flight and (asked != terms or full)) or not outlet.may_launch(lane, now):
                continue
            batch = delivery.launch(outlet.identity, now)
            if batch is None:
                continue
            flight.append((lane, batch))
            partitions.add((outlet.topic, lane.partition))
            size += batch.reserved
            terms = asked
        return flight

    def _submit(self, pipeline: Pipeline, flight: list[tuple[ProducerLane, Batch]], now: float) -> None:
        terms = Terms.of(self._outlets[flight[0][0].owner], flight[0][1])
        shares: dict[Meter, int] = {}
        stamped: list[tuple[ProducerLane, Batch]] = []
        outgoing: list[Outgoing] = []
        for lane, batch in flight:
            outlet = self._outlets[lane.owner]
            outlet.launched(lane.partition)
            try:
                header, payload = batch.buffer.stamp(batch.stamp(terms.transactional_id is not None))
            except Exception as error:  # noqa: BLE001  # whatever is wrong with it, only its own messages hear of it
                self.land(lane, batch, as_ours("its batch cannot be sent", error), now)
                continue
            stamped.append((lane, batch))
            outgoing.append(Outgoing(Partition(batch.topic, batch.partition), header, payload))
            shares[outlet.meter] = shares.get(outlet.meter, 0) + len(header) + len(payload)
        if not outgoing:
            return
        request = Publish(outgoing, terms.acks, int(self._options.request_timeout_ms), terms.transactional_id)
        token = Flight(self, stamped)
        gate = AT_ONCE if self.flushing else terms.gate
        try:
            pipeline.submit(request, token, now, gate, [Share(*share) for share in shares.items()])
        except PenstockError as error:  # the wire has no word for it
            token.landed(Lost(token, error), now)

    def _after_launch(self, lane: ProducerLane) -> None:
        """Nothing of a lane waits any more: what stayed open only for that is sealed."""
        if lane.delivery is None or not lane.delivery.has_waiting:
            self._busy.pop(lane, None)
            lane.owner.seal_overdue(lane)

    # Failures

    def _divide(self, lane: ProducerLane, batch: Batch, verdict: PenstockError | Spoilt) -> Division | None:
        """Cut a batch that is too large in two; leave out the messages that spoil one."""
        arrivals: Arrivals | None = None
        if isinstance(verdict, Spoilt) and len(verdict.messages) < batch.count:
            errors = {index: blame(verdict, index) for index in verdict.messages if 0 <= index < batch.count}
            arrivals = without(batch.count, errors) if errors else None
        elif isinstance(verdict, BatchTooLargeError) and batch.count > 1:
            arrivals = halves(batch.count)
        if arrivals is None:
            return None
        columns = batch.buffer.columns()
        parts, moved = regroup(columns, arrivals, lambda _, size: lane.owner.new_part(batch, lane.partition, size))
        for part in parts:
            lane.owner.compress(part)
        return Division([part for part in parts if part.verdict is None], moved)

    def _expire(self, now: float) -> None:
        self._expire_at = float("inf")
        for lanes, outlet in self._outlets.items():
            for lane in list(lanes.intake.lanes.values()):
                if lane.delivery is not None:
                    self._finish(lane, lane.delivery.expire(now, self._why(outlet, lane, now)))
                    expiry = lane.delivery.next_expiry()
                    self._expire_at = min(self._expire_at, expiry if expiry is not None else self._expire_at)
                    if not lane.delivery.has_waiting:
                        self._after_launch(lane)
            expiry = undesignated.expire(lanes, now, lambda outlet=outlet: self._never_known(outlet, now))  # type: ignore[misc]
            self._expire_at = min(self._expire_at, expiry if expiry is not None else self._expire_at)

    def _why(self, outlet: Outlet, lane: ProducerLane, now: float) -> str:
        """What keeps a lane from sending."""
        cluster = outlet.cluster
        trouble = cluster.trouble(now) or cluster.error(outlet.topic)
        if trouble is not None:
            return str(trouble)
        leader = cluster.leader(Partition(outlet.topic, lane.partition))
        if leader is None:
            return f"{outlet.topic}-{lane.partition} has no leader"
        failure = cluster.failure(leader)
        return f"its leader, broker {leader}, cannot be reached: {failure}" if failure else ""

    def _never_known(self, outlet: Outlet, now: float) -> PenstockError:
        trouble = outlet.cluster.error(outlet.topic) or outlet.cluster.trouble(now)
        text = f"its delivery time is over before the partitions of {outlet.topic} were known"
        return because(ExpiredError(f"{text}: {trouble}" if trouble else text), trouble)

    def _topic_failed(self, outlet: Outlet, error: PenstockError, now: float) -> None:
        """A topic cannot be used: patience with one that is not there (yet), none with other lasting errors."""
        outlet.trouble = error
        if isinstance(error, UnknownTopicError):
            outlet.unknown_since = now if outlet.unknown_since is None else outlet.unknown_since
            if now - outlet.unknown_since < outlet.lanes.options.unknown_topic_ms / 1000:
                return
        elif error.retriable:
            return
        outlet.fail(error)

    def _finish(self, lane: ProducerLane, settled: Sequence[Settled]) -> None:
        for batch, _ in settled:
            lane.owner.finish(batch)

    def look_again(self, outlet: Outlet, now: float) -> None:
        """Somebody wants the topic now: if it could not be used, perhaps it can be meanwhile."""
        self._look_up(outlet, now)
        outlet.ask_identity(now)
        if outlet.cluster.error(outlet.topic) is not None:
            outlet.cluster.refresh(outlet.topic)

    # Small things

    def _look_up(self, outlet: Outlet, now: float) -> None:
        try:
            outlet.cluster.want(outlet.topic, now, create=not outlet.lanes.forwards)
        except PenstockError as error:
            outlet.fail(error)

    def _designate(self, outlet: Outlet) -> None:
        cluster, topic = outlet.cluster, outlet.topic
        partitions = cluster.partitions(topic)
        if partitions is None:
            return
        led = [number for number in range(partitions) if cluster.leader(Partition(topic, number)) is not None]
        undesignated.designate(outlet.lanes, partitions, range(partitions) if len(led) == partitions else led)

    def _maybe_ready(self, outlet: Outlet, now: float) -> None:
        """Open the way to the first partition that has a leader; say so when it is open."""
        if outlet.readiness.verdict is not None:
            return
        available = outlet.lanes.directions.available
        if not available:
            return
        leader = outlet.cluster.leader(Partition(outlet.topic, available[0]))
        is_known = outlet.identity is not None or not outlet.needs_identity
        if leader is not None and outlet.cluster.connection(leader, now) is not None and is_known:
            outlet.became_ready()

    def _drop_idle(self, now: float) -> None:
        """Drop idle lanes. Their topics stay wanted, so that a producer learns of new partitions when idle too."""
        idle = self._options.lane_idle_ms / 1000
        self._drop_at = now + idle / IDLE_CHECKS
        self._accumulator.drop_idle(now - idle)
        for outlet in list(self._outlets.values()):
            self._look_up(outlet, now)

    def _outlets_of(self, cluster: Cluster, topic: str | None = None) -> list[Outlet]:
        return [
            outlet
            for outlet in self._outlets.values()
            if outlet.cluster is cluster and (topic is None or outlet.topic == topic)
        ]

    def _pause(self, attempts: int) -> float:
        options = self._options
        return pause(attempts, options.retry_backoff_ms / 1000, options.retry_backoff_max_ms / 1000, self._random)


def _verdict(event: Answered | Sent | Lost, partition: Partition) -> Verdict:
    if isinstance(event, Sent):
        return Stored(None)
    if isinstance(event, Lost):
        return event.error
    answer: Verdict = event.answer if isinstance(event.answer, PenstockError) else event.answer[partition]
    return answer
