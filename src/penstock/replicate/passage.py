"""The ways to a partition of the target: within transactions, or without.

With transactions, each partition of the source has a transactional id of its own. Whoever takes the id fences whoever
had it and ends his transaction; then he reads the position that was committed last, and goes on there. Messages and
position are committed together: there is no moment at which the one is there and the other is not.

Without them, positions are committed behind messages that are stored. Whoever goes on there repeats what was stored
after the last commit.

Runs on: the I/O thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from penstock.consume.seeker import Seeker
from penstock.errors import BusyError, ConfigError, GapError, PenstockError, UnknownTopicError
from penstock.net.asks import Whom
from penstock.net.cluster import Cluster
from penstock.net.errand import Ask, Steps, Until
from penstock.net.errands import Errands
from penstock.net.failures import because
from penstock.net.homes import Homes
from penstock.produce.producer import ProducerCore
from penstock.produce.transactions.transaction import TransactionalOutlet
from penstock.replicate.consignment import Consignment
from penstock.replicate.note import SourceNote
from penstock.replicate.point_log import PointWriter
from penstock.replicate.position_map import Point
from penstock.replicate.strand import Claimed, Told
from penstock.wire.protocol import (
    NO_MEMBER,
    ClusterView,
    FindHome,
    LookUp,
    Mark,
    Partition,
    ReadMarks,
    Spot,
    StoreMarks,
)

_log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class Desk:
    """What all passages to one target work with."""

    cluster: Cluster
    errands: Errands
    homes: Homes
    seeker: Seeker
    group: str
    """Under which positions are committed."""
    points: PointWriter | None
    """Who writes down where messages are in the copy."""
    goes_on: bool
    """Whether copying goes on at the beginning where the source was made anew."""


class BasePassage:
    """What both ways have in common: the place of the position, the note beside it, and the points."""

    halts = False

    def __init__(
        self, desk: Desk, producer: ProducerCore, source: Partition, places: Sequence[Partition], note: SourceNote
    ) -> None:
        """`places`: the partitions of the target that it writes to; the position is committed beside each of them."""
        self.producer = producer
        self.log: UUID | None = None
        """The id of the target's topic."""
        self._desk = desk
        self._source = source
        self._places = places
        self._place = places[0]
        self._first_note = note
        self._note = note
        self._end = 0
        self._errand: Future[Any] | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} from {self._source} to {self._place}>"

    def come_through(self, clusters: frozenset[str]) -> bool:
        """What is forwarded next came through these clusters; whether that must be committed first."""
        note = self._note.coming_through(clusters)
        is_new, self._note = note is not self._note, note
        self._first_note = self._first_note.coming_through(clusters)  # so that going back does not forget them
        return is_new and not self.halts

    def forward(self, consignment: Consignment) -> Any:
        """Send a batch; the parcel that gets its verdict."""
        return self.producer.lanes.forward(consignment.buffer, consignment.partition)

    def stored_to(self, end: int) -> None:
        """Something was stored, up to here."""
        self._end = max(self._end, end)

    def tell_points(self, points: Sequence[Point]) -> Sequence[Any]:
        """Write down where messages are in the copy; the parcels that get the verdicts."""
        writer = self._desk.points
        if writer is None or len(self._places) > 1:  # of several partitions a position tells nothing
            return ()
        receipts = [writer.tell(self._source, point, self.log) for point in points]
        return list({id(receipt.parcel): receipt.parcel for receipt in receipts}.values())

    def close(self) -> None:
        """It is not needed any more."""
        self._is_closed = True
        if self._errand is not None:
            self._errand.cancel()

    def _run(self, steps: Steps[Any], told: Callable[[Any], None]) -> None:
        """Have steps taken; told what they came to, or the error."""
        self._errand = future = self._desk.errands.run(self._desk.cluster, steps)
        future.add_done_callback(lambda done: None if done.cancelled() else told(_outcome(done)))

    def _read_mark(self) -> Steps[Claimed]:
        """Where copying goes on, and what is known of those who copied before."""
        desk = self._desk
        told = yield from desk.homes.asked(FindHome(desk.group, of_group=True), ReadMarks(desk.group, [self._place]))
        if told.error is not None:
            raise told.error
        marks: Mapping[Partition, Mark] = told.answer
        yield from desk.seeker.partitions(self._place.topic)  # which says so where there is none any more
        ends = yield from desk.seeker.find(dict.fromkeys(self._places, Spot.LATEST), committed=False)
        log_before, self.log = self.log, (yield from self._find_log())
        self._end = max(self._end if self.log == log_before else 0, *ends.values())
        mark = marks.get(self._place)
        return Claimed(None if mark is None else self._checked(mark), max(ends.values()))

    def _find_log(self) -> Steps[UUID | None]:
        """The id of the target's topic, asked for anew: what is known may be of one that was deleted meanwhile."""
        topic, cluster = self._place.topic, self._desk.cluster
        view: ClusterView | PenstockError = yield Ask(LookUp(frozenset({topic})), Whom.ANYBODY)
        if isinstance(view, PenstockError):
            raise view
        found, known = view.topics.get(topic), cluster.topology.topic_id(topic)
        if found is None or found.id is None or found.id == known:
            return known
        cluster.refresh(topic)
        raise BusyError(f"{topic} was deleted and made anew: its id is {found.id}, and was {known}")

    def _checked(self, mark: Mark) -> Mark | None:
        """A mark that is of this source; None where copying is to begin anew."""
        found = SourceNote.decode(mark.note)
        if found is None:
            raise ConfigError(
                f"group {self._desk.group} has a position for {self._place} that no replicator wrote: choose another "
                "name for the pipeline, or delete the group"
            )
        if found.is_of_another_log(self.log):
            _log.warning("%s was deleted and made anew: it is filled from the beginning", self._place)
            self._note = self._first_note
            return None
        difference = self._first_note.difference(found)
        if difference is None:
            self._note = self._first_note.succeeding(found)
            return Mark(mark.position, "", mark.leader_epoch)
        if not self._desk.goes_on or found.cluster != self._first_note.cluster:
            raise because(GapError(str(self._source), mark.position, None, difference), None)
        self._note = self._first_note.succeeding(found)
        return None

    def _marks(self, mark: Mark, producer: int) -> dict[Partition, Mark]:
        told = self._desk.cluster.topology.topic_id(self._place.topic)
        if None not in (told, self.log) and told != self.log:
            topic = self._place.topic
            raise UnknownTopicError(f"{topic} was deleted and made anew: its id is {told}, and was {self.log}")
        self._note = self._note.written_by(producer, self._end).beside(self.log)
        return dict.fromkeys(self._places, mark._replace(note=self._note.encode()))


class TransactionalPassage(BasePassage):
    """Exactly once."""

    halts = True

    def __init__(
        self, desk: Desk, producer: ProducerCore, source: Partition, places: Sequence[Partition], note: SourceNote
    ) -> None:
        super().__init__(desk, producer, source, places, note)
        assert isinstance(producer.outlet, TransactionalOutlet)
        self._outlet = producer.outlet
        self._keeper = producer.outlet.keeper

    def claim(self, told: Callable[[Claimed | PenstockError], None]) -> None:
        """Take the transactional id, which fences whoever had it; then read the position that was committed last."""
        self._then(self._keeper.begin(self._outlet), told, lambda: self._run(self._read_mark(), told))

    def commit(self, mark: Mark, told: Told) -> None:
        """Commit the position with the messages, and open the next transaction."""
        identity = self._keeper.identity
        if identity is None:  # the id was lost meanwhile, and the keeper may say how
            self.give_up(lambda error: told(error or BusyError(f"{self!r}: its transactional id is asked for anew")))
            return
        try:
            marks = self._marks(mark, identity.producer)
        except PenstockError as error:
            told(error)
            return
        self._then(self._keeper.commit({(self._desk.group, NO_MEMBER): marks}), told, lambda: self._begin(told))

    def give_up(self, told: Told) -> None:
        """Abort; what was forwarded does not count."""
        self._then(self._keeper.roll_back(), told)

    def close(self) -> None:
        """End its producer."""
        super().close()
        self.producer.begin_close(0)

    def _begin(self, told: Told) -> None:
        self._then(self._keeper.begin(self._outlet), told)

    def _then(
        self, future: Future[None], told: Callable[[Any], None], following: Callable[[], None] | None = None
    ) -> None:
        """Tell the outcome; or have what follows done where it succeeded, and tell why that could not be begun."""

        def go_on(done: Future[None]) -> None:
            error = _error(done)
            if self._is_closed:
                return
            if error is not None or following is None:
                told(error)
                return
            try:
                following()
            except Exception as problem:  # noqa: BLE001  # whoever waits must hear of it
                told(_as_error(problem))

        future.add_done_callback(go_on)


class PlainPassage(BasePassage):
    """At least once; all partitions of a topic share one producer."""

    def claim(self, told: Callable[[Claimed | PenstockError], None]) -> None:
        """Read the position that was committed last."""
        self._run(self._claiming(), told)

    def commit(self, mark: Mark, told: Told) -> None:
        """Commit the position of what is stored."""
        self._run(self._committing(mark), told)

    def give_up(self, told: Told) -> None:
        """Its lane has given up what waited; what is in flight is still answered."""
        told(None)

    def _claiming(self) -> Steps[Claimed]:
        yield Until(lambda now: self.producer.outlet.identity is not None)
        return (yield from self._read_mark())

    def _committing(self, mark: Mark) -> Steps[None]:
        yield Until(lambda now: self.producer.outlet.identity is not None)
        identity = self.producer.outlet.identity
        assert identity is not None
        desk = self._desk
        request = StoreMarks(desk.group, self._marks(mark, identity.producer))
        told = yield from desk.homes.asked(FindHome(desk.group, of_group=True), request)
        if told.error is not None:
            raise told.error


def _outcome(done: Future[Any]) -> Any:
    error = _error(done)
    return done.result() if error is None else error


def _error(done: Future[Any]) -> PenstockError | None:
    if done.cancelled():
        return None
    error = done.exception()
    return None if error is None else _as_error(error)


def _as_error(error: BaseException) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    return because(PenstockError(f"copying cannot go on: {error!r}"), error)
