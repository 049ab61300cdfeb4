"""A reader on the I/O thread: asks the leaders of its partitions for entries and puts what they give into its feed.

A reader has connections of its own, one to each broker that leads some of its partitions. A broker answers on one
connection in the order in which it was asked, so a request that waits for messages would hold up whatever is behind
it: another reader's, a producer's. In one turn:

    resume    partitions whose pause is over
    doubt     partitions whose leader has changed since they were read
    launch    one request to each broker that has none, for all of its partitions that are ready, while there is room

A broker is asked for all its partitions at once: it answers as soon as one of them has something, and waits only when
none has. It fills an answer in the order of the request; partitions that got something go to the end of the next one.
Room is shared by the brokers so that each can have an answer in the feed and the next one on its way.

What must be found out before a partition can be read on (`inquiry.py`) is an errand beside all this.

Runs on: the I/O thread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from penstock.clock import Clock
from penstock.config import ClientOptions, ReaderOptions
from penstock.consume.feed import Feed, Load, Part
from penstock.consume.inquiry import Gap, Inquiry
from penstock.consume.places import CursorPlace, Plan
from penstock.consume.seeker import Seeker
from penstock.consume.topic_watch import Doubtful, Gone, MadeAnew, TopicWatch
from penstock.consume.track import Stage, Track
from penstock.errors import (
    BusyError,
    ClosedError,
    DecodeError,
    GapError,
    LimitError,
    NotLeaderError,
    PenstockError,
    PositionError,
    TimedOutError,
)
from penstock.net.backoff import Backoff, earliest
from penstock.net.cluster import Cluster, ClusterEvent
from penstock.net.errand import Errand, Steps
from penstock.net.failures import because
from penstock.net.homes import Homes
from penstock.net.links import Unreachable
from penstock.net.pipeline import Lost, Pipeline, Sent
from penstock.net.topology import TopicChanged, TopicFailed
from penstock.wire.property_filter import PropertyCondition
from penstock.wire.protocol import Answered, Fetch, Fetched, Mark, NodeId

ANSWER_BYTES: Final = 64 << 10
"""What an answer may take beside its entries."""
HURRY_MS: Final = 50
"""How long a broker waits for messages while a partition of its own is to be asked for soon."""
GARBLED_MAX: Final = 3
"""So many answers of a broker in a row that make no sense end the reader."""

_log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class FetcherParts:
    """What a fetcher works with; `cluster` is its own."""

    cluster: Cluster
    feed: Feed
    clock: Clock
    backoff: Callable[[], Backoff]
    client: ClientOptions
    unknown_topic: float
    is_led: bool = False
    """Whether somebody says for each partition where it is read on, and when: nothing is asked for before that, and the
    end of all partitions is not the end of it."""


class Flight:
    """A request for entries of several partitions, all led by one broker."""

    __slots__ = ("_fetcher", "bytes_max", "eras", "node", "tracks")

    def __init__(self, fetcher: Fetcher, node: NodeId, tracks: Sequence[Track], bytes_max: int) -> None:
        self._fetcher = fetcher
        self.node = node
        self.tracks = tracks
        self.eras = [track.era for track in tracks]
        self.bytes_max = bytes_max

    def landed(self, event: Answered | Sent | Lost, now: float) -> None:
        """The request has its outcome, and with it each partition."""
        self._fetcher.land(self, event, now)

    def split(self) -> tuple[list[Track], list[Track]]:
        """Those of its partitions whose answer counts, and those that were sent elsewhere meanwhile."""
        counting = [track for track, era in zip(self.tracks, self.eras, strict=True) if track.era == era]
        return counting, [track for track in self.tracks if track not in counting]

    def __repr__(self) -> str:
        return f"<Flight to {self.node} for {len(self.tracks)} partitions>"


class Fetcher:
    """One reader's far side."""

    def __init__(
        self, plan: Plan, options: ReaderOptions, parts: FetcherParts, condition: PropertyCondition | None = None
    ) -> None:
        """`condition`: brokers that filter are asked to leave out what does not match it."""
        self.cluster = parts.cluster
        self.feed = parts.feed
        self.gone: Future[None] = Future()
        """Done when it has let go of its connections."""
        self.gone.set_running_or_notify_cancel()
        self.ready: Future[None] = Future()
        """Done when it is known where every partition starts and ends."""
        self.ready.set_running_or_notify_cancel()
        self.missing = 0
        """Positions that were gone, and passed over."""
        self.tracks: dict[int, Track] = {}
        self.starts: dict[int, Mark] = {}
        """Where each partition was begun."""
        self._plan = plan
        self._options = options
        self._parts = parts
        self._group = plan.start.group if isinstance(plan.start, CursorPlace) else None
        self._filter = None if condition is None else str(condition)
        tools = (parts.cluster, parts.clock, parts.backoff, parts.unknown_topic)
        self._inquiry = Inquiry(plan, options, Seeker(*tools), Homes(*tools), parts.backoff)
        self._errands: list[Errand] = []
        self._coming: set[int] = set()  # partitions that came later, and are being looked at
        self._flights: dict[NodeId, Flight] = {}
        self._by_leader: dict[NodeId, list[Track]] | None = None
        self._trouble: PenstockError | None = None  # of no partition in particular
        self._watch = TopicWatch(plan.topic, parts.cluster, parts.unknown_topic)
        self._garbled = 0
        self._is_over = False
        self._looks = True  # something has happened since it was last worked on
        self._is_idle = False  # nothing can change but by something that happens, or at the next look
        self._next_look = math.inf

    def __repr__(self) -> str:
        return f"<Fetcher of {self._plan.topic}, {len(self.tracks)} partitions, {len(self._flights)} requests>"

    @property
    def is_over(self) -> bool:
        """Whether nothing more is fetched."""
        return self._is_over

    @property
    def trouble(self) -> PenstockError | None:
        """Why nothing comes, as last told; None where nothing is in the way. Runs on: any thread."""
        stuck = (track.trouble for track in self.tracks.values() if track.stage is not Stage.DONE)
        return next((error for error in stuck if error is not None), self._trouble or self._inquiry.trouble)

    def begin(self, now: float) -> None:
        """Find out where to start."""
        self.cluster.want(self._plan.topic, now, keep=True)
        self._run(self._start(self._until(now)), now)

    def end(self, error: PenstockError | None) -> None:
        """Fetch no more: everything was read, or this is in the way."""
        if self._is_over:
            return
        self._is_over = True
        for errand in self._errands:
            errand.drop()
        self._errands.clear()
        if not self.ready.done():
            self.ready.set_exception(error or ClosedError("the reader was closed"))
        self.feed.end(error)

    def seek(self, number: int, mark: Mark) -> None:
        """Read a partition from this position on; parts of an earlier era do not count any more."""
        track = self.tracks[number]
        track.seek(mark.position, mark.leader_epoch)
        self._looks = True

    def hold(self, number: int, is_held: bool) -> None:
        """Ask for nothing more of a partition for now; or for more again."""
        track = self.tracks[number]
        self._looks |= track.is_held and not is_held
        track.is_held = is_held

    def look(self) -> None:
        """Something has happened that may let it go on."""
        self._looks = True

    def handle(self, event: ClusterEvent, now: float) -> None:
        """News of its cluster."""
        self._looks = True
        if isinstance(event, TopicChanged):
            self._by_leader = None
            self._watch.known()
            self._add_new(event.partitions, now)
        elif isinstance(event, TopicFailed):
            self._trouble = event.error
            self._watch.failed(event.error, now)
            if not event.error.retriable and self.tracks:
                self.end(event.error)
        elif isinstance(event, Unreachable):
            self._trouble = event.error

    def land(self, flight: Flight, event: Answered | Sent | Lost, now: float) -> None:
        """A request was answered, or will not be."""
        self._flights.pop(flight.node, None)
        self._looks = True
        if self._is_over:
            return
        answer: Any = event.answer if isinstance(event, Answered) else getattr(event, "error", None)
        if isinstance(answer, PenstockError):
            self._answer_failed(flight, answer, now)
            return
        self._garbled = 0
        self._trouble = None
        load = Load(sum(given.size for given in answer.values() if isinstance(given, Fetched)))
        counting, sent_elsewhere = flight.split()
        for track in sent_elsewhere:
            track.passed_over()
        parts = [
            part
            for track in counting
            if isinstance(given := answer.get(track.partition), Fetched)
            and (part := self._land(track, given, load, now)) is not None
        ]
        self._rotate(flight, parts)
        self.feed.put(parts)
        for track in counting:
            refusal = answer.get(track.partition)
            if refusal is None:
                track.passed_over()
            elif isinstance(refusal, PenstockError):
                self._refused(track, refusal, now)
        self._end_if_done()

    # The turn

    def work(self, now: float) -> float | None:
        """Do what is due; when to come back at the latest."""
        if self._is_idle and not self._looks and now < self._next_look:
            return None if self._next_look == math.inf else self._next_look
        self._looks, self._is_idle = False, True
        deadlines: list[float | None] = [errand.work(now) for errand in list(self._errands)]
        self._errands = [errand for errand in self._errands if not errand.is_over]
        if self.tracks and not self._is_over:
            deadlines += [self._resume(track, now) for track in self.tracks.values() if track.stage is Stage.PAUSED]
            doubtful_until = self._check_topic(now)
            if doubtful_until is None:
                self._launch(now)
            deadlines += (None if doubtful_until == math.inf else doubtful_until, self._check_patience(now))
        deadline = earliest(deadlines)
        self._next_look = math.inf if deadline is None else deadline
        self._is_idle = self._is_idle and not self._errands
        return -math.inf if self._looks and not self._is_over else deadline

    def _launch(self, now: float) -> None:
        groups = self._grouped(now)
        share = self._share(len(groups))
        for node, tracks in groups.items():
            if node in self._flights:
                continue
            ready = [track for track in tracks if self._is_wanted(track, now)]
            if not ready:
                continue
            pipeline = self.cluster.connection(node, now)
            if pipeline is None or not pipeline.has_room(now):
                self._is_idle = False  # no event tells when it has
                self._cannot_reach(node, ready, now)
                continue
            reserved = sum(flight.bytes_max for flight in self._flights.values())
            size = min(share, len(ready) * self._options.partition_bytes_max)
            if not self.feed.has_room(reserved, size):
                continue
            flight = Flight(self, node, ready, size)
            try:
                pipeline.submit(self._request(flight, tracks, pipeline), flight, now)
            except PenstockError as error:
                self.end(error)
                return
            self._flights[node] = flight

    def _is_wanted(self, track: Track, now: float) -> bool:
        return track.stage is Stage.READY and not track.is_held and self._is_sure(track, now)

    def _request(self, flight: Flight, tracks: Sequence[Track], pipeline: Pipeline) -> Fetch:
        options = self._options
        filters = pipeline.ready is not None and pipeline.ready.filters
        others_soon = any(track.stage in (Stage.PAUSED, Stage.DOUBTED) for track in tracks)
        wait_ms = min(options.fetch_wait_ms, self._parts.client.request_timeout_ms / 2)
        bytes_max = min(options.partition_bytes_max, flight.bytes_max)
        return Fetch(
            {track.partition: track.wanted(bytes_max) for track in flight.tracks},
            {self._plan.topic: self._watch.topic_id},
            flight.bytes_max,
            min(options.fetch_bytes_min, flight.bytes_max),
            int(min(wait_ms, HURRY_MS) if others_soon else wait_ms),
            options.isolation == "committed",
            self._group if filters else None,
            self._filter if filters else None,
        )

    def _share(self, nodes: int) -> int:
        """What one broker may give in one answer."""
        frame = self._parts.client.frame_bytes_max - ANSWER_BYTES
        share = min(self._options.fetch_bytes_max, self._options.prefetch_bytes_max // (2 * max(nodes, 1)))
        return max(min(share, frame), 1)

    def _grouped(self, now: float) -> dict[NodeId, list[Track]]:
        """Partitions that are not done by their leaders, in the order in which they are to be asked for."""
        if self._by_leader is None:
            self._by_leader = {}
            for track in self.tracks.values():
                leader = self.cluster.leader(track.partition)
                if leader is not None:
                    self._by_leader.setdefault(leader, []).append(track)
                elif track.stage is not Stage.DONE:
                    track.stuck(NotLeaderError(f"{track.partition} has no leader at the moment"), now)
                    self.cluster.refresh(self._plan.topic)
        return {
            node: open_ones
            for node, tracks in self._by_leader.items()
            if (open_ones := [track for track in tracks if track.stage is not Stage.DONE])
        }

    def _rotate(self, flight: Flight, parts: Sequence[Part]) -> None:
        """Those that got something are asked for behind the others next time."""
        tracks = (self._by_leader or {}).get(flight.node)
        if tracks is not None and parts:
            served = {part.partition for part in parts}
            tracks.sort(key=lambda track: track.partition in served)

    def _is_sure(self, track: Track, now: float) -> bool:
        """Whether a partition can be read on under its present leader; begins to find out where it is not sure."""
        epoch = self.cluster.topology.leader_epoch(track.partition)
        if epoch == track.leader_epoch:
            return True
        if track.epoch < 0 or epoch < 0:
            track.leader_epoch = epoch
            return True
        track.doubt()
        self._run(self._check_leader(track, epoch, now), now)
        return False

    def _cannot_reach(self, node: NodeId, tracks: Iterable[Track], now: float) -> None:
        failure = self.cluster.failure(node)
        if failure is None:
            return
        for track in tracks:
            track.stuck(failure, now)

    # Answers

    def _land(self, track: Track, given: Fetched, load: Load, now: float) -> Part | None:
        readable = given.stable if self._options.isolation == "committed" and given.stable >= 0 else given.end
        track.log_end = max(readable, track.position)
        if not given.entries:
            if track.end is not None and readable >= track.end and given.size == 0 == load.size:
                track.doubt()
                self._run(self._check_hole(track, now), now)
            else:
                track.found_nothing()
            return None
        first = track.position
        if given.next <= first:
            track.pause(
                BusyError(f"{track.partition}: the broker gives what lies before {first}, which was asked for"), now
            )
            return None
        track.landed(given)
        return Part(
            *(load, track.partition, given.entries, first, track.end, track.position),
            *(given.first_epoch, given.last_epoch, given.aborted, track.era),
        )

    def _refused(self, track: Track, error: PenstockError, now: float) -> None:
        """A broker does not give anything of a partition."""
        if isinstance(error, PositionError):
            track.doubt()
            self._run(self._check_bounds(track, now), now)
        elif error.retriable:
            if error.refresh_metadata:
                self.cluster.refresh(self._plan.topic)
            track.pause(error, now)
        else:
            self.end(error)

    def _answer_failed(self, flight: Flight, error: PenstockError, now: float) -> None:
        """No answer, or one that says nothing of any partition."""
        cause = error.__cause__
        if isinstance(cause, DecodeError):
            self._garbled += 1
            if isinstance(cause, LimitError) or self._garbled >= GARBLED_MAX:
                self.end(because(type(cause)(cause.offset, cause.field, cause.expected, cause.found), error))
                return
        if not error.retriable:
            self.end(error)
            return
        self.cluster.refresh(self._plan.topic)
        for track in flight.tracks:
            track.pause(error, now)

    def _resume(self, track: Track, now: float) -> float | None:
        if now < track.resume_at:
            return track.resume_at
        track.resume()
        return None

    def _end_if_done(self) -> None:
        if (
            self._plan.end is not None
            and not self._parts.is_led
            and all(track.stage is Stage.DONE for track in self.tracks.values())
        ):
            self.end(None)

    # Errands

    def _run(self, steps: Steps[None], now: float) -> None:
        errand = Errand(self.cluster, steps, self._errand_done)
        self._errands.append(errand)
        self._looks = True
        errand.begin(now)

    def _errand_done(self, error: PenstockError | None) -> None:
        self._looks = True
        if error is not None:
            self.end(error)
        else:
            self._end_if_done()

    def _until(self, now: float) -> float:
        """How long finding something out may take."""
        return math.inf if self._options.trouble_ms_max is None else now + self._options.trouble_ms_max / 1000

    def _start(self, until: float) -> Steps[None]:
        tracks = yield from self._inquiry.start(until)
        self._watch.begin()
        self._add(tracks)
        self.ready.set_result(None)
        self._add_new(self.cluster.partitions(self._plan.topic) or 0, self._parts.clock.monotonic())

    def _arrive(self, numbers: Iterable[int]) -> Steps[None]:
        tracks = yield from self._inquiry.arrive(numbers)
        self._add(tracks)

    def _check_bounds(self, track: Track, now: float) -> Steps[None]:
        era = track.era
        found = yield from self._inquiry.bounds(track, self._until(now))
        if track.era != era:
            track.go_on(track.position)
        elif isinstance(found, Gap):
            self._pass_over(track, found)
        elif found == track.position:
            told = BusyError(f"{track.partition}: a broker has no position {found}, although its log reaches over it")
            track.pause(told, self._parts.clock.monotonic())
        else:
            self._go_on(track, found)

    def _check_leader(self, track: Track, epoch: int, now: float) -> Steps[None]:
        era = track.era
        found = yield from self._inquiry.leader(track, self._until(now))
        if track.era == era:
            track.leader_epoch = epoch
        if found is None or track.era != era:
            track.go_on(track.position)
        else:
            self._pass_over(track, found)

    def _check_hole(self, track: Track, now: float) -> Steps[None]:
        era = track.era
        doubtful = yield from self._inquiry.hole(track, self._until(now))
        if track.era != era:
            track.go_on(track.position)
        elif doubtful is not None:
            track.pause(doubtful, self._parts.clock.monotonic())
        else:
            assert track.end is not None
            self._go_on(track, track.end)

    def _begin_anew(self, tracks: Sequence[Track]) -> Steps[None]:
        """The topic was made anew, and is read from its first message on."""
        found = yield from self._inquiry.arrive(track.partition.number for track in tracks)
        for track, anew in zip(tracks, found, strict=True):
            track.epoch = track.leader_epoch = -1
            self._go_on(track, anew.position)

    def _pass_over(self, track: Track, gap: Gap) -> None:
        error = GapError(str(track.partition), gap.first, gap.next, gap.why, gap.start, gap.end)
        if self._options.on_gap == "stop":
            raise error
        _log.warning("passed over: %s", error)
        self.missing += 0 if gap.next is None else gap.next - gap.first
        track.epoch = -1
        self._go_on(track, gap.resume)

    def _go_on(self, track: Track, position: int) -> None:
        track.go_on(position)
        self.feed.put([_arrival(Load(0), track)])

    # The topic

    def _add(self, tracks: Sequence[Track]) -> None:
        for track in tracks:
            track.is_held = self._parts.is_led
        self.tracks = self.tracks | {track.partition.number: track for track in tracks}
        self.starts = self.starts | {track.partition.number: Mark(track.position, "", track.epoch) for track in tracks}
        self._coming.difference_update(self.tracks)
        self._by_leader = None
        load = Load(0)
        self.feed.put([_arrival(load, track) for track in tracks])

    def _add_new(self, count: int, now: float) -> None:
        """A topic that is followed as a whole is followed in its new partitions too."""
        if self._plan.partitions is not None or self._plan.end is not None or not self.ready.done():
            return
        new = [number for number in range(count) if number not in self.tracks and number not in self._coming]
        if new and not self._is_over:
            self._coming.update(new)
            self._run(self._arrive(new), now)

    def _check_topic(self, now: float) -> float | None:
        """Whether the topic can be read on; until when not, if it cannot."""
        found = self._watch.check(now)
        if isinstance(found, Doubtful):
            return found.until
        if isinstance(found, Gone):
            self.end(found.error)
        elif isinstance(found, MadeAnew):
            self._made_anew(found, now)
        return None if found is None else math.inf

    def _made_anew(self, found: MadeAnew, now: float) -> None:
        if self._options.on_gap == "stop" or self._parts.is_led:  # who leads it must learn of the other topic first
            first = min(self.tracks.values(), key=lambda track: (track.stage is Stage.DONE, track.partition))
            self.end(GapError(str(first.partition), first.position, None, found.why))
        elif not self._flights and not self._errands:  # else when they have come back
            _log.warning("%s is read from its beginning: %s", self._plan.topic, found.why)
            self._watch.begin()
            tracks = [track for track in self.tracks.values() if track.stage is not Stage.DONE]
            for track in tracks:
                if track.stage is Stage.PAUSED:
                    track.resume()
                track.doubt()
            self._run(self._begin_anew(tracks), now)

    def _check_patience(self, now: float) -> float | None:
        """End it when something has been in the way for too long; when to look again."""
        if self._options.trouble_ms_max is None or self._is_over:
            return None
        stuck = [track for track in self.tracks.values() if track.since is not None and track.stage is not Stage.DONE]
        if not stuck:
            return None
        longest = min(stuck, key=lambda track: track.since or now)
        over_at = (longest.since or now) + self._options.trouble_ms_max / 1000
        if now >= over_at:
            text = f"{longest.partition} could not be read for {self._options.trouble_ms_max} ms: {longest.trouble}"
            self.end(because(TimedOutError(text), longest.trouble))
        return over_at


def _arrival(load: Load, track: Track) -> Part:
    """Tells the reading thread where a partition is, without entries."""
    where = (track.position, track.end, track.position, track.epoch, track.epoch)
    return Part(load, track.partition, (), *where, era=track.era)
