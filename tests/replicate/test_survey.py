"""Both ends of a pipeline before anything is copied: what is refused, created and grown."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any
from uuid import UUID

import pytest

from penstock.errors import BusyError, ConfigError, DeniedError, PenstockError, RefusedError, UnknownTopicError
from penstock.net.asks import Whom
from penstock.net.errand import Until
from penstock.replicate.route import SAME_NAME, Route
from penstock.replicate.survey import Ends, Surveyor, TopicPlan
from penstock.wire.protocol import (
    ClusterView,
    CreateTopic,
    Done,
    GrowTopic,
    LookUp,
    Mark,
    Partition,
    PartitionView,
    ReadMarks,
    ReadSettings,
    TopicSettings,
    TopicView,
)


class End:
    """A cluster that answers at once, and remembers what it was asked."""

    def __init__(self, cluster_id: str | None, **topics: int) -> None:
        self.cluster_id = cluster_id
        self.topics = topics
        self.settings: dict[str, TopicSettings] = {}
        self.errors: dict[str, PenstockError] = {}
        self.refusal: PenstockError | None = None
        """What it says to whoever wants to create a topic."""
        self.faster: int | None = None
        """Somebody else creates the topic a moment before, with so many partitions."""
        self.is_slow = False
        """What was created is not known to whoever is asked next."""
        self.marks: Mapping[Partition, Mark] = {}
        self.asked: list[Any] = []

    def ask(self, request: Any, whom: Any = None) -> Future[Any]:
        self.asked.append(request)
        if isinstance(request, CreateTopic | GrowTopic):
            assert whom is Whom.CONTROLLER
        future: Future[Any] = Future()
        try:
            future.set_result(self._answer(request))
        except PenstockError as error:
            future.set_exception(error)
        return future

    def _answer(self, request: Any) -> Any:
        match request:
            case LookUp():
                names = self.topics.keys() | self.errors.keys() if request.topics is None else request.topics
                return ClusterView(self.cluster_id, {}, {name: self._view(name) for name in sorted(names)})
            case ReadSettings():
                self._known(request.topic)
                return self.settings.get(request.topic, TopicSettings({}, is_compacted=False))
            case CreateTopic():
                return self._create(request)
            case GrowTopic():
                assert self.topics[request.name] < request.partitions
                self.topics[request.name] = request.partitions
                return Done()
            case ReadMarks():
                return {one: mark for one, mark in self.marks.items() if one in request.partitions}
        raise AssertionError(request)

    def _known(self, name: str) -> None:
        if name not in self.topics or self.is_slow:
            raise UnknownTopicError(f"there is no topic {name}")

    def _view(self, name: str) -> TopicView:
        if name in self.errors:
            return TopicView({}, self.errors[name])
        if name not in self.topics:
            return TopicView({}, UnknownTopicError(f"there is no topic {name}"))
        return TopicView({number: PartitionView(1) for number in range(self.topics[name])}, None, topic_id(name))

    def _create(self, request: CreateTopic) -> Done:
        if self.faster is not None:
            self.topics[request.name] = self.faster
            raise RefusedError("there is a topic of this name", "TOPIC_ALREADY_EXISTS")
        if self.refusal is not None:
            raise self.refusal
        self.topics[request.name] = request.partitions
        return Done()

    def made(self) -> list[Any]:
        return [one for one in self.asked if isinstance(one, CreateTopic | GrowTopic)]


def topic_id(name: str) -> UUID:
    return UUID(bytes=name.encode().rjust(16, b"\0"))


def surveyor(
    source: End,
    target: End,
    topics: Any = "t",
    *,
    pattern: str | None = None,
    rename: str = SAME_NAME,
    repartition: bool = False,
) -> Surveyor:
    route = Route.read(() if pattern else topics, pattern, rename, "west")
    return Surveyor(route, Ends(source.ask, target.ask, target.ask), "penstock.mine", repartition)


def look(one: Surveyor) -> list[TopicPlan]:
    """One survey, its steps taken one after the other."""
    steps = one.survey()
    try:
        while True:
            wait = next(steps)
            assert isinstance(wait, Until)
            assert wait.holds(0.0)
    except StopIteration as done:
        plans: list[TopicPlan] = done.value
        return plans


def plan(name: str, partitions: int, **more: Any) -> TopicPlan:
    fields: dict[str, Any] = {
        "target": name,
        "target_partitions": partitions,
        "batch_bytes_max": 1 << 20,
        "id": topic_id(name),
    }
    return TopicPlan(name, partitions=partitions, **(fields | more))


# What is found


def test_a_topic_that_both_have_is_copied() -> None:
    one = surveyor(End("a", t=3), End("b", t=3))
    assert look(one) == [plan("t", 3)]
    assert (one.source_id, one.target_id) == ("a", "b")
    assert not plan("t", 3).is_routed


def test_it_waits_for_answers() -> None:
    future: Future[Any] = Future()
    one = surveyor(End("a", t=1), End("b", t=1))
    one.ends = Ends(lambda request, whom: future, one.ends.target, one.ends.marks)
    wait = next(one.survey())
    assert isinstance(wait, Until)
    assert not wait.holds(0.0)
    future.set_result(ClusterView("a", {}, {}))
    assert wait.holds(0.0)


def test_a_topic_that_the_target_lacks_is_created_with_what_copies_must_have() -> None:
    source, target = End("a", t=5), End("b")
    source.settings["t"] = TopicSettings(
        {"cleanup.policy": "compact", "retention.ms": "5"}, True, {"cleanup.policy": "compact"}, 5000
    )
    assert look(surveyor(source, target)) == [plan("t", 5, batch_bytes_max=5000)]
    assert target.made() == [CreateTopic("t", 5, settings={"cleanup.policy": "compact"})]


def test_a_topic_just_created_need_not_be_known_to_every_broker_yet() -> None:
    source, target = End("a", t=1), End("b")
    source.settings["t"] = TopicSettings({}, is_compacted=False, batch_bytes_max=5000)
    target.is_slow = True
    assert look(surveyor(source, target)) == [plan("t", 1, batch_bytes_max=5000)]


def test_copies_get_their_own_names() -> None:
    target = End("a")
    one = surveyor(End("a", t=2), target, rename="{cluster}.{topic}")
    assert look(one) == [plan("t", 2, target="west.t")]
    assert [made.name for made in target.made()] == ["west.t"]


@pytest.mark.parametrize(
    ("here", "there", "batch_bytes_max"),
    [(None, None, 1 << 20), (5000, None, 5000), (5000, 300, 300), (None, 300, 300)],
)
def test_the_largest_batch_is_what_the_target_says(here: int | None, there: int | None, batch_bytes_max: int) -> None:
    source, target = End("a", t=1), End("b", t=1)
    source.settings["t"] = TopicSettings({}, is_compacted=False, batch_bytes_max=here)
    target.settings["t"] = TopicSettings({}, is_compacted=False, batch_bytes_max=there)
    (found,) = look(surveyor(source, target))
    assert found.batch_bytes_max == batch_bytes_max


def test_a_pattern_chooses_of_all_that_there_is() -> None:
    source, target = End("a", orders=1, bills=2, other=1, __internal=1), End("b")
    one = surveyor(source, target, pattern="orders|bills|__.*")
    assert [(found.topic, found.partitions) for found in look(one)] == [("bills", 2), ("orders", 1)]


def test_where_a_pattern_chooses_nothing_the_target_is_not_asked() -> None:
    target = End("b")
    assert look(surveyor(End("a", orders=1), target, pattern="bills")) == []
    assert target.asked == []


# What is refused


def test_an_unknown_topic_is_refused() -> None:
    target = End("b")
    with pytest.raises(UnknownTopicError, match="there is no topic t"):
        look(surveyor(End("a"), target))
    assert target.made() == []


def test_a_topic_that_may_not_be_read_is_refused() -> None:
    source = End("a")
    source.errors["t"] = DeniedError("no")
    with pytest.raises(DeniedError):
        look(surveyor(source, End("b")))


def test_a_target_topic_that_may_not_be_seen_is_refused() -> None:
    target = End("b")
    target.errors["t"] = DeniedError("no")
    with pytest.raises(DeniedError):
        look(surveyor(End("a", t=1), target))
    assert target.made() == []


def test_a_topic_is_not_copied_onto_itself() -> None:
    target = End("a", t=1)
    with pytest.raises(ConfigError) as raised:
        look(surveyor(End("a", t=1, u=1), target, ["u", "t"]))
    assert str(raised.value) == (
        "source and target are the same cluster, a: u would be copied onto itself; give copies another name with "
        "rename=..."
    )
    assert target.made() == []


def test_clusters_without_ids_are_taken_for_different_ones() -> None:
    assert look(surveyor(End(None, t=1), End(None, t=1))) == [plan("t", 1)]


@pytest.mark.parametrize(("here", "there"), [(3, 2), (2, 3)])
def test_another_number_of_partitions_is_refused(here: int, there: int) -> None:
    target = End("b", t=there)
    with pytest.raises(ConfigError) as raised:
        look(surveyor(End("a", t=here), target))
    assert str(raised.value) == (
        f"topic t has {here} partitions, and t in the target has {there}: give it as many, or set repartition=True to "
        "have messages opened and sent to where their keys belong there"
    )
    assert target.made() == []


@pytest.mark.parametrize(("here", "there"), [(3, 2), (2, 3)])
def test_another_number_of_partitions_is_taken_where_that_is_asked_for(here: int, there: int) -> None:
    (found,) = look(surveyor(End("a", t=here), End("b", t=there), repartition=True))
    assert found == plan("t", here, target_partitions=there)
    assert found.is_routed


def test_what_cannot_be_created_is_told() -> None:
    target = End("b")
    target.refusal = RefusedError("too many partitions", "INVALID_PARTITIONS")
    with pytest.raises(RefusedError, match="too many partitions"):
        look(surveyor(End("a", t=1), target))
    target.refusal = BusyError("not now")
    with pytest.raises(BusyError):
        look(surveyor(End("a", t=1), target))


# Somebody else was faster


def test_a_topic_that_somebody_else_has_just_created_is_taken() -> None:
    target = End("b")
    target.faster = 4
    assert look(surveyor(End("a", t=4), target)) == [plan("t", 4)]


def test_unless_it_has_another_number_of_partitions() -> None:
    target = End("b")
    target.faster = 1
    with pytest.raises(ConfigError, match="topic t has 4 partitions, and t in the target has 1"):
        look(surveyor(End("a", t=4), target))


# Again


def test_what_is_known_is_not_told_again() -> None:
    one = surveyor(End("a", t=3), End("b", t=3))
    assert len(look(one)) == 1
    assert look(one) == []


def test_a_source_that_grew_has_its_copy_grown() -> None:
    source, target = End("a", t=2), End("b")
    one = surveyor(source, target)
    look(one)
    source.topics["t"] = 5
    assert look(one) == [plan("t", 5)]
    assert target.made()[1:] == [GrowTopic("t", 5)]
    assert look(one) == []


def test_a_copy_of_an_earlier_time_is_grown_where_the_pipeline_has_positions_in_it() -> None:
    target = End("b", t=2)
    target.marks = {Partition("t", 0): Mark(100, "note")}
    assert look(surveyor(End("a", t=5), target)) == [plan("t", 5)]
    assert target.made() == [GrowTopic("t", 5)]
    assert ReadMarks("penstock.mine", [Partition("t", 0)]) in target.asked


def test_a_copy_that_has_more_partitions_is_never_the_pipelines_own() -> None:
    target = End("b", t=5)
    target.marks = {Partition("t", 0): Mark(100, "note")}
    with pytest.raises(ConfigError):
        look(surveyor(End("a", t=2), target))


def test_new_topics_are_noticed() -> None:
    source, target = End("a", orders=1), End("b")
    one = surveyor(source, target, pattern="orders.*")
    look(one)
    source.topics["orders-eu"] = 2
    assert look(one) == [plan("orders-eu", 2)]


def test_a_source_topic_that_is_gone_is_left_to_its_reader() -> None:
    source = End("a", t=1)
    one = surveyor(source, End("b", t=1))
    look(one)
    source.topics.clear()
    assert look(one) == []
