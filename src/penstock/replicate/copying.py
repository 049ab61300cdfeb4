"""What a user copies with: `penstock.copy(source, target, ...)`.

A pipeline has two clients, one for each end, that share an I/O thread: what is read from the one is handed to the other
there, and no thread is crossed on the way.

Runs on: any thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.client import Client, ClientCore
from penstock.config import Options, parse
from penstock.config.options import Scope
from penstock.consume.cursor import read_filter
from penstock.consume.judge import Judge
from penstock.consume.places import Given, make_plan
from penstock.consume.seeker import Seeker
from penstock.consume.stats import ReaderStats
from penstock.errors import ConfigError, PenstockError
from penstock.metrics import Registry as Metrics
from penstock.net.asks import Target
from penstock.net.homes import Homes
from penstock.net.url import read_url
from penstock.produce.producer import ProducerCore
from penstock.produce.receipts import own
from penstock.replicate.commit_clock import Terms
from penstock.replicate.consignment import Packer, Packing
from penstock.replicate.meter import CopyMeter, GateMeter
from penstock.replicate.note import SourceNote, check_name, group_of, transactional_id
from penstock.replicate.origins import Destination, OriginFinder, Origins
from penstock.replicate.passage import Desk, PlainPassage, TransactionalPassage
from penstock.replicate.permits import Permits
from penstock.replicate.point_log import PointWriter
from penstock.replicate.rate import Rate
from penstock.replicate.replicator import Replicator
from penstock.replicate.route import SAME_NAME, Route
from penstock.replicate.routing import Routing
from penstock.replicate.source import Registry, SourceTopic
from penstock.replicate.stats import CopyStats, Counts
from penstock.replicate.strand import Passage, Shared, Strand
from penstock.replicate.survey import Ends, Surveyor, TopicPlan
from penstock.replicate.translate import Translator
from penstock.wire.property_filter import PropertyCondition
from penstock.wire.protocol import FindHome, Partition, ReadMarks, Request

SCOPES: Final = (Scope.CLIENT, Scope.READER, Scope.GATE, Scope.REPLICATOR)
START_TIMEOUT: Final = 60.0
ASK_TIMEOUT: Final = 30.0
TRANSACTION_TIMEOUT_MS: Final = 20_000
"""A copier that is gone holds back readers of what is committed for so long."""
IN_FLIGHT_MAX: Final = 20
"""Requests on one connection: each partition's transactions are requests of their own, a few for each."""
SPARE_BYTES: Final = 32 << 20
"""Memory beside what is forwarded, for points."""
STOP_TIMEOUT: Final = 30.0
SKIPPED: Final = ("filtered", "aborted", "control", "empty")

_log = logging.getLogger("penstock")

Until = Literal["end"]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What is to be copied, as users say it."""

    name: str
    route: Route
    condition: PropertyCondition | None
    start: Given
    until: Until | None
    repartition: bool
    options: Options


class Copying:
    """A pipeline at work; made by `penstock.copy`."""

    def __init__(self, pipeline: Pipeline, source: str, target: str) -> None:
        self.name = pipeline.name
        self._pipeline = pipeline
        options = pipeline.options
        self._source = ClientCore(read_url(source), options)
        try:
            self._target = ClientCore(read_url(target), options)
        except BaseException:
            self._source.begin_close(0)
            raise
        self._clients = (Client(self._source), Client(self._target))
        self._engine = self._source.engine
        self._readers: dict[str, ReaderStats] = {}
        self._meters: dict[str, CopyMeter] = {}
        self._gates: dict[str, GateMeter] = {}
        self._plain: dict[str, ProducerCore] = {}
        self._points: PointWriter | None = None
        self._is_closed = False
        try:
            self._prepare()
        except BaseException:
            self.close(0)
            raise

    def __repr__(self) -> str:
        return f"<Copying {self.name}, {self._source.address} to {self._target.address}>"

    def __enter__(self) -> Copying:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Beginning

    def _prepare(self) -> None:
        """Look at both ends, refuse what cannot be copied, and begin."""
        pipeline, engine, options = self._pipeline, self._engine, self._pipeline.options.replicator
        self._tools = (engine.clock, engine.backoff, self._target.unknown_topic)
        self._homes = Homes(self._target.cluster, *self._tools)
        self._registry = Registry(self._source.cluster, engine.errands, self._finder(), self.name)
        ends = Ends(self._ask(self._source), self._ask(self._target), self._read_marks, self._find_feeders)
        surveyor = Surveyor(pipeline.route, ends, group_of(self.name), pipeline.repartition)
        plans = engine.errands.run(self._target.cluster, surveyor.survey()).result(START_TIMEOUT)
        self._surveyor = surveyor
        self._points = PointWriter(self._clients[1], pipeline.route.alias or self.name)
        self._terms = Terms(options.commit_interval_ms / 1000, options.transaction_bytes_max, options.renew_ms / 1000)
        self._replicator = replicator = Replicator(
            engine.loop,
            engine.errands,
            engine.clock,
            surveyor,
            options.discover_ms / 1000,
            (self._open_topic, self._open_strand),
            self._target.cluster,
            self._tell,
        )
        self._shared = Shared(
            Permits(options.copy_bytes_max, options.copy_entries_max, replicator.look_at_all),
            Rate(options.messages_per_second_max),
            Rate(options.bytes_per_second_max),
            replicator.look,
            replicator.strand_ended,
        )
        topics = ", ".join(plan.topic for plan in plans)
        _log.info("pipeline %s copies %s, %s", self.name, topics or "nothing yet", _promise(options.delivery))
        engine.loop.call(lambda: replicator.begin(plans, follows=pipeline.until is None))

    def _finder(self) -> OriginFinder:
        homes = Homes(self._source.cluster, *self._tools)
        return OriginFinder(self._source.cluster, self._engine.clock, self._engine.backoff, homes, self.name)

    def _find_feeders(self, partitions: list[Partition]) -> Future[Origins]:
        return self._engine.errands.run(self._source.cluster, self._registry.finder.find(partitions))

    def _ask(self, end: ClientCore) -> Any:
        def ask(request: Request[Any], target: Target) -> Future[Any]:
            return end.ask(request, target, ASK_TIMEOUT)

        return ask

    def _read_marks(self, request: ReadMarks) -> Future[Any]:
        def steps() -> Any:
            told = yield from self._homes.asked(FindHome(request.group, of_group=True), request)
            if told.error is not None:
                raise told.error
            return told.answer

        return self._engine.errands.run(self._target.cluster, steps())

    # Topics and strands, on the I/O thread

    def _open_topic(self, plan: TopicPlan) -> SourceTopic:
        pipeline = self._pipeline
        end = "latest" if pipeline.until == "end" else None
        places = make_plan(plan.topic, pipeline.start, end, None)
        fetcher = self._source.led_fetcher(places, pipeline.options.reader, pipeline.condition)
        destination = Destination(self._surveyor.target_id or "", plan.target)
        self._readers[plan.topic] = ReaderStats()
        self._meters[plan.topic] = CopyMeter(self._engine.metrics, self.name, plan.topic)
        self._engine.readers.attach(fetcher, self._engine.clock.monotonic())
        return SourceTopic(plan.topic, fetcher, self._registry, destination)

    def _open_strand(self, topic: SourceTopic, plan: TopicPlan, number: int) -> Strand:
        partition = Partition(plan.topic, number)
        options = self._pipeline.options
        entries = self._source.wire.stored_entries()
        condition = self._pipeline.condition
        judge = Judge(entries, condition, options.reader, self._readers[plan.topic], claims=False)
        packing = Packing(
            number,
            condition,
            options.replicator.repack,
            plan.batch_bytes_max,
            Routing(plan.target_partitions) if plan.is_routed else None,
            options.reader.decompressed_bytes_max,
        )
        return Strand(
            partition,
            (topic, self._passage(plan, number)),
            judge,
            Packer(self._target.wire, entries, packing),
            self._terms,
            self._shared,
            self._engine.backoff(),
        )

    def _passage(self, plan: TopicPlan, number: int) -> Passage:
        """The way for a partition. Where messages go to other partitions, each source partition has a group of its own,
        and its position stands beside all partitions that it may write to."""
        source = Partition(plan.topic, number)
        note = SourceNote(self._surveyor.source_id or "unknown", plan.topic, plan.id, number)
        group, places = group_of(self.name), [Partition(plan.target, number)]
        if plan.is_routed:
            group = f"{group}/{number}"
            places = [Partition(plan.target, place) for place in range(plan.target_partitions)]
        desk = self._desk(group)
        if self._pipeline.options.replicator.delivery == "at-least-once":
            return PlainPassage(desk, self._plain_producer(plan.target), source, places, note)
        tid = transactional_id(self.name, plan.target, number)
        producer = self._producer(plan.target, transactional_id=tid, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
        return TransactionalPassage(desk, producer, source, places, note)

    def _desk(self, group: str) -> Desk:
        engine = self._engine
        seeker = Seeker(self._target.cluster, *self._tools)
        goes_on = self._pipeline.options.reader.on_gap == "skip"
        return Desk(self._target.cluster, engine.errands, self._homes, seeker, group, self._points, goes_on)

    def _plain_producer(self, topic: str) -> ProducerCore:
        producer = self._plain.get(topic)
        if producer is None:
            producer = self._plain[topic] = self._producer(topic)
        return producer

    def _producer(self, topic: str, **options: Any) -> ProducerCore:
        producer = self._target.producer(topic, None, self._pipeline.options.io, None, (None, None), options)
        producer.lanes.forwards = True
        meter = self._gates.get(topic)
        if meter is None:
            meter = self._gates[topic] = GateMeter(self._engine.metrics, str(self._target.address), "", topic)
        producer.outlet.meter = meter
        return producer

    def _tell(self, now: float) -> None:
        """Have the metrics say what was done."""
        wall_ms = self._engine.clock.wall_ms()
        for name, topic in self._replicator.topics.items():
            total = Counts()
            for strand in topic.strands.values():
                total.merge(strand.counts)
            read = self._readers[name]
            self._meters[name].tell(
                total.entries() | {kind: getattr(read, f"entries_{kind}") for kind in SKIPPED},
                {
                    "copied": total.messages_copied,
                    "returned": total.messages_returned,
                    "filtered": read.messages_filtered,
                    "aborted": read.messages_aborted,
                    "sifted": sum(strand.sifted for strand in topic.strands.values()),
                },
                {
                    "bytes": total.bytes_copied,
                    "batches": total.batches,
                    "commits": total.commits,
                    "rewinds": total.rewinds,
                    "missing": topic.fetcher.missing,
                    "skipped": read.skipped,
                },
                max((topic.standing(number, now, wall_ms).delay_ms for number in topic.strands), default=0.0),
                self._shared.permits.bytes,
            )

    # What a user asks

    @property
    def metrics(self) -> Metrics:
        """What is counted."""
        return self._engine.metrics

    def stats(self) -> CopyStats:
        """What was done so far, and where each partition is."""
        now, wall_ms = self._engine.clock.monotonic(), self._engine.clock.wall_ms()
        topics = dict(self._replicator.topics)
        strands = [strand for topic in topics.values() for strand in list(topic.strands.values())]
        partitions = {
            strand.partition: topics[strand.partition.topic].standing(strand.partition.number, now, wall_ms)
            for strand in strands
        }
        total = Counts()
        for one in partitions.values():
            total.merge(one.counts)
        readers = [self._readers[name] for name in topics]
        return CopyStats(
            partitions,
            total,
            sum(read.entries_filtered for read in readers),
            sum(read.messages_filtered for read in readers),
            sum(read.skipped for read in readers),
            sum(strand.sifted for strand in strands),
            sum(topic.fetcher.missing for topic in topics.values()),
            self._shared.permits.bytes,
            max((one.delay_ms for one in partitions.values()), default=0.0),
        )

    def wait(self, timeout: float | None = None) -> None:
        """Wait until everything is copied that was there when it began, or for ever where it follows its source.

        Raises why copying ended otherwise, or TimeoutError.
        """
        self._engine.loop.check_may_wait()
        try:
            self._replicator.ended.result(timeout)
        except PenstockError as error:
            raise own(error) from error.__cause__

    def translator(self) -> Translator:
        """What finds positions and groups of the source in the copy. Works while copying goes on, and until it is
        closed."""
        route = self._pipeline.route
        return Translator(*self._clients, route.alias or self.name, route.target_of, copier=group_of(self.name))

    @property
    def is_over(self) -> bool:
        """Whether it does nothing any more: everything is copied, or it cannot go on."""
        return self._replicator.ended.done()

    def close(self, timeout: float | None = STOP_TIMEOUT) -> None:
        """Commit what is stored, end, and let go of both clusters."""
        if self._is_closed or self._engine.loop.is_inherited():
            return
        self._is_closed = True
        replicator = getattr(self, "_replicator", None)
        if replicator is not None and not self._engine.loop.is_here():
            with contextlib.suppress(PenstockError, TimeoutError):
                self._engine.loop.call(replicator.stop)
                replicator.ended.result(timeout)
        if self._points is not None:
            self._points.close(timeout)
        for client in self._clients:
            client.close(timeout)


def copy(
    source: str,
    target: str,
    topics: str | Sequence[str] = (),
    *,
    name: str,
    pattern: str | None = None,
    filter: str | PropertyCondition | None = None,  # noqa: A002
    rename: str = SAME_NAME,
    cluster: str = "",
    target_cluster: str = "",
    start: Given = "earliest",
    until: Until | None = None,
    repartition: bool = False,
    **options: Any,
) -> Copying:
    """Copy topics from one cluster to another, whole batches at a time and unopened where that can be.

    `name` is the pipeline's: under it the target keeps how far it has got, so that it goes on there when it is started
    again. Topics are named, or chosen by a `pattern`; `rename` says what copies are called (`{cluster}.{topic}`, where
    `cluster` is what the source is called, and `target_cluster` what the target is called by a pipeline in the other
    direction, whose copies a pattern leaves out then). With until="end" it ends when everything is copied that was
    there when it began; otherwise it follows its source until it is closed. Options are those of clients, readers,
    gates and replicators.
    """
    check_name(name)
    route = Route.read(topics, pattern, rename, cluster, target_cluster)
    if until not in (None, "end"):
        raise ConfigError(f"until: expected end, or nothing, found {until!r}")
    read = parse(options, SCOPES)
    client = read.client
    if client.client_id == type(client)().client_id:
        client = dataclasses.replace(client, client_id=f"penstock.{name}")
    memory = max(client.total_bytes_max, read.replicator.copy_bytes_max + SPARE_BYTES)
    client = dataclasses.replace(client, total_bytes_max=memory, in_flight_max=max(client.in_flight_max, IN_FLIGHT_MAX))
    read = dataclasses.replace(read, client=client)
    pipeline = Pipeline(name, route, read_filter(filter), start, until, repartition, read)
    return Copying(pipeline, source, target)


def _promise(delivery: str) -> str:
    if delivery == "exactly-once":
        return "each message exactly once"
    return "each message at least once: after a failure some are there twice"
