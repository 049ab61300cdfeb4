"""Topics: created, grown, changed, deleted; true when durable, and not before."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from uuid import UUID

import pytest

from penstock.broker.refusals import Refusal, Refused
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import OffsetRow, Scope, Store
from penstock.broker.topics import BROKER, Topic, Topics
from penstock.errors import StorageFullError
from tests.broker.rounds import HandRounds


class Listener:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def topic_created(self, topic: Topic) -> None:
        self.heard.append(f"created {topic.name}")

    def topic_grown(self, topic: Topic) -> None:
        self.heard.append(f"grown {topic.name} {topic.partitions}")

    def topic_deleted(self, topic: Topic) -> None:
        self.heard.append(f"deleted {topic.name}")

    def settings_changed(self, scope: Scope, values: Mapping[str, object], unset: Collection[str]) -> None:
        self.heard.append(f"{scope.kind} {scope.name}: {dict(values)} without {sorted(unset)}")


class Desk:
    """Topics with rounds by hand."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.settings = BrokerSettings(folder, **options)  # type: ignore[arg-type]
        self.told: list[object] = []
        self.open()

    def open(self) -> None:
        self.store = Store(self.settings.folder)
        self.rounds = HandRounds(self.store)
        self.topics = Topics(self.store, self.settings)
        self.listener = Listener()
        self.topics.listeners.append(self.listener)

    def close(self) -> None:
        self.store.close()
        self.rounds.close()

    def again(self) -> None:
        self.close()
        self.open()

    def create(self, name: str, partitions: int | None = None, **settings: object) -> Topic:
        self.topics.create(name, partitions, settings, now_ms=7, done=self.told.append)
        self.rounds.run()
        return self.topics.get(name)

    def refusal(self) -> Refusal:
        """Why the last thing was undone."""
        last = self.told[-1]
        assert isinstance(last, Refused)
        return last.reason


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def refused(reason: Refusal) -> pytest.RaisesExc[Refused]:
    return pytest.RaisesExc(Refused, check=lambda error: error.reason is reason)


def test_a_topic_is_found_when_it_is_durable(desk: Desk) -> None:
    desk.topics.create("orders", 3, {"retention_ms": 1}, now_ms=7, done=desk.told.append)
    assert desk.topics.find("orders") is None
    assert desk.told == []
    desk.rounds.run()
    topic = desk.topics.get("orders")
    assert desk.told == [topic]
    assert (topic.name, topic.partitions, topic.partitioned, topic.created_ms) == ("orders", 3, True, 7)
    assert topic.settings.retention_ms == 1
    assert desk.topics.by_id(topic.id) is topic
    assert desk.topics.find("public/default/orders") is topic
    assert desk.listener.heard == ["created orders"]
    assert (len(desk.topics), list(desk.topics), desk.topics.partition_count) == (1, [topic], 3)


def test_topics_come_back_after_a_start(desk: Desk) -> None:
    before = [desk.create("orders", 3, segment_ms=5), desk.create("acme/sales/bills")]
    desk.again()
    assert sorted(topic.row for topic in desk.topics) == sorted(topic.row for topic in before)
    assert desk.topics.get("orders").settings.segment_ms == 5
    assert desk.topics.partition_count == 4


def test_a_topic_has_as_many_partitions_as_is_usual_unless_said(tmp_path: Path) -> None:
    desk = Desk(tmp_path, partitions_default=6)
    assert desk.create("orders").partitions == 6
    desk.topics.create("one", now_ms=7, done=desk.told.append, partitioned=False)
    desk.rounds.run()
    assert desk.topics.get("one").partitions == 1
    assert not desk.topics.get("one").partitioned
    desk.close()


def test_a_name_is_taken_from_the_moment_it_is_asked_for(desk: Desk) -> None:
    desk.topics.create("orders", now_ms=7, done=desk.told.append)
    for name in ("orders", "public/default/orders"):
        with refused(Refusal.TOPIC_EXISTS):
            desk.topics.create(name, now_ms=7, done=desk.told.append)
    desk.rounds.run()
    with refused(Refusal.TOPIC_EXISTS):
        desk.topics.create("orders", now_ms=7, done=desk.told.append)
    assert len(desk.told) == 1


def test_a_creation_that_is_undone_frees_the_name(desk: Desk) -> None:
    desk.rounds.fail_with = StorageFullError("full")
    desk.topics.create("orders", now_ms=7, done=desk.told.append)
    desk.rounds.run()
    assert desk.refusal() is Refusal.STORAGE_FULL
    assert desk.topics.find("orders") is None
    assert desk.listener.heard == []
    assert desk.create("orders", 2).partitions == 2
    assert desk.topics.partition_count == 2


def test_a_plan_changes_nothing(desk: Desk) -> None:
    row, own = desk.topics.plan("orders", 4, {"segment_ms": "9"})
    assert (row.name, row.partitions, own) == ("orders", 4, {"segment_ms": 9})
    assert desk.create("orders", 1).partitions == 1
    with refused(Refusal.TOPIC_EXISTS):
        desk.topics.plan("orders")


@pytest.mark.parametrize(
    ("name", "partitions", "settings", "reason"),
    [
        ("no/name", 1, {}, Refusal.BAD_TOPIC_NAME),
        ("orders", 0, {}, Refusal.BAD_PARTITION_COUNT),
        ("orders", -1, {}, Refusal.BAD_PARTITION_COUNT),
        ("orders", 9, {}, Refusal.BAD_PARTITION_COUNT),
        ("orders", 1, {"cleanup": "compact"}, Refusal.BAD_SETTING),
        ("orders", 1, {"unknown": 1}, Refusal.BAD_SETTING),
    ],
)
def test_what_cannot_be_created_is_refused_at_once(
    tmp_path: Path, name: str, partitions: int, settings: dict[str, object], reason: Refusal
) -> None:
    desk = Desk(tmp_path, partitions_max=8)
    with refused(reason):
        desk.topics.create(name, partitions, settings, now_ms=7, done=desk.told.append)
    desk.rounds.run()
    assert desk.told == []
    desk.close()


def test_a_topic_that_is_one_log_has_one_partition_and_does_not_grow(desk: Desk) -> None:
    with refused(Refusal.BAD_PARTITION_COUNT):
        desk.topics.create("one", 2, now_ms=7, done=desk.told.append, partitioned=False)
    desk.topics.create("one", 1, now_ms=7, done=desk.told.append, partitioned=False)
    desk.rounds.run()
    with refused(Refusal.BAD_PARTITION_COUNT):
        desk.topics.grow("one", 2, desk.told.append)


def test_all_partitions_are_counted_those_on_their_way_too(tmp_path: Path) -> None:
    desk = Desk(tmp_path, partitions_total_max=10)
    desk.create("a", 4)
    desk.topics.create("b", 4, now_ms=7, done=desk.told.append)
    with refused(Refusal.BAD_PARTITION_COUNT):
        desk.topics.create("c", 3, now_ms=7, done=desk.told.append)
    with refused(Refusal.BAD_PARTITION_COUNT):
        desk.topics.grow("a", 7, desk.told.append)
    desk.topics.grow("a", 6, desk.told.append)
    with refused(Refusal.BAD_PARTITION_COUNT):
        desk.topics.create("c", 1, now_ms=7, done=desk.told.append)
    desk.rounds.run()
    desk.topics.delete("b", desk.told.append)
    desk.rounds.run()
    desk.create("c", 4)
    assert desk.topics.partition_count == 10
    desk.close()


# Created by use


def test_a_topic_is_created_when_it_is_first_used(desk: Desk) -> None:
    desk.topics.ensure("orders", now_ms=7, done=desk.told.append)
    desk.topics.ensure("public/default/orders", now_ms=7, done=desk.told.append)
    assert desk.told == []
    desk.rounds.run()
    topic = desk.topics.get("orders")
    assert desk.told == [topic, topic]
    desk.topics.ensure("orders", now_ms=7, done=desk.told.append)
    assert desk.told == [topic] * 3


def test_all_who_wait_for_a_topic_learn_that_it_could_not_be_made(desk: Desk) -> None:
    desk.rounds.fail_with = StorageFullError("full")
    desk.topics.ensure("orders", now_ms=7, done=desk.told.append)
    desk.topics.ensure("orders", now_ms=7, done=desk.told.append)
    desk.rounds.run()
    assert [refused.reason for refused in desk.told if isinstance(refused, Refused)] == [Refusal.STORAGE_FULL] * 2


def test_a_broker_may_create_nothing_by_use(tmp_path: Path) -> None:
    desk = Desk(tmp_path, topics_auto_create=False)
    with refused(Refusal.UNKNOWN_TOPIC):
        desk.topics.ensure("orders", now_ms=7, done=desk.told.append)
    desk.topics.create("orders", now_ms=7, done=desk.told.append)
    desk.topics.ensure("orders", now_ms=7, done=desk.told.append)
    desk.rounds.run()
    assert desk.told == [desk.topics.get("orders")] * 2
    desk.close()


def test_no_topic_is_created_by_use_of_a_bad_name(desk: Desk) -> None:
    with refused(Refusal.BAD_TOPIC_NAME):
        desk.topics.ensure("no name", now_ms=7, done=desk.told.append)


# Growing


def test_a_topic_grows_when_that_is_durable(desk: Desk) -> None:
    topic = desk.create("orders", 2)
    desk.topics.grow("orders", 5, desk.told.append)
    assert topic.partitions == 2
    with refused(Refusal.BAD_PARTITION_COUNT):
        desk.topics.grow("orders", 6, desk.told.append)
    desk.rounds.run()
    assert topic.partitions == desk.topics.partition_count == 5
    assert desk.told == [topic, topic]
    assert desk.listener.heard[-1] == "grown orders 5"
    desk.again()
    assert desk.topics.get("orders").partitions == 5


@pytest.mark.parametrize("partitions", [-1, 0, 1, 2])
def test_a_topic_never_shrinks(desk: Desk, partitions: int) -> None:
    desk.create("orders", 2)
    with refused(Refusal.BAD_PARTITION_COUNT):
        desk.topics.grow("orders", partitions, desk.told.append)


def test_growth_that_is_undone_can_be_asked_for_again(desk: Desk) -> None:
    topic = desk.create("orders", 2)
    desk.rounds.fail_with = StorageFullError("full")
    desk.topics.grow("orders", 5, desk.told.append)
    desk.rounds.run()
    assert desk.refusal() is Refusal.STORAGE_FULL
    assert topic.partitions == desk.topics.partition_count == 2
    desk.topics.grow("orders", 3, desk.told.append)
    desk.rounds.run()
    assert topic.partitions == desk.topics.partition_count == 3


def test_what_is_not_there_does_not_grow(desk: Desk) -> None:
    with refused(Refusal.UNKNOWN_TOPIC):
        desk.topics.plan_growth("orders", 5)


# Settings


def test_the_nearest_setting_holds(tmp_path: Path) -> None:
    desk = Desk(tmp_path, topics={"segment_ms": 4})
    topic = desk.create("acme/sales/orders")
    other = desk.create("orders")
    assert topic.settings.segment_ms == other.settings.segment_ms == 4
    desk.topics.change(BROKER, {"segment_ms": 3}, done=desk.told.append)
    assert topic.settings.segment_ms == 4
    desk.rounds.run()
    assert topic.settings.segment_ms == other.settings.segment_ms == 3
    desk.topics.change(Scope("namespace", "acme/sales"), {"segment_ms": 2})
    desk.rounds.run()
    assert (topic.settings.segment_ms, other.settings.segment_ms) == (2, 3)
    desk.topics.change(Scope("topic", topic.name), {"segment_ms": 1})
    desk.rounds.run()
    assert (topic.settings.segment_ms, other.settings.segment_ms) == (1, 3)
    desk.again()
    assert desk.topics.get("acme/sales/orders").settings.segment_ms == 1
    for scope, left in ((Scope("topic", topic.name), 2), (Scope("namespace", "acme/sales"), 3), (BROKER, 4)):
        desk.topics.change(scope, {}, {"segment_ms"})
        desk.rounds.run()
        assert desk.topics.get("acme/sales/orders").settings.segment_ms == left
    assert desk.topics.scopes() == []
    desk.close()


def test_listeners_hear_of_changes(desk: Desk) -> None:
    desk.create("orders")
    desk.topics.change(Scope("topic", "orders"), {"segment_ms": "1"}, {"segment_ms", "retention_ms"})
    desk.rounds.run()
    assert desk.listener.heard[-1] == "topic orders: {'segment_ms': 1} without ['retention_ms']"
    assert dict(desk.topics.own(Scope("topic", "orders"))) == {"segment_ms": 1}


def test_a_change_that_is_undone_changes_nothing(desk: Desk) -> None:
    topic = desk.create("orders", segment_ms=5)
    desk.rounds.fail_with = StorageFullError("full")
    desk.topics.change(Scope("topic", "orders"), {"segment_ms": 9}, done=desk.told.append)
    desk.rounds.run()
    assert desk.refusal() is Refusal.STORAGE_FULL
    assert topic.settings.segment_ms == 5
    assert desk.listener.heard == ["created orders"]


@pytest.mark.parametrize(
    ("scope", "values", "unset", "reason"),
    [
        (Scope("topic", "nothing"), {"segment_ms": 1}, (), Refusal.UNKNOWN_TOPIC),
        (Scope("topic", "public/default/orders"), {"segment_ms": 1}, (), Refusal.BAD_SETTING),
        (Scope("topic", "orders"), {"segment_ms": 0}, (), Refusal.BAD_SETTING),
        (Scope("topic", "orders"), {"unknown": 1}, (), Refusal.BAD_SETTING),
        (Scope("topic", "orders"), {}, ("unknown",), Refusal.BAD_SETTING),
        (Scope("namespace", "acme"), {"segment_ms": 1}, (), Refusal.BAD_TOPIC_NAME),
        (Scope("broker", "7"), {"segment_ms": 1}, (), Refusal.BAD_SETTING),
        (Scope("group", "readers"), {"segment_ms": 1}, (), Refusal.BAD_SETTING),
        (Scope("planet", "earth"), {"segment_ms": 1}, (), Refusal.BAD_SETTING),
    ],
)
def test_what_cannot_be_set_is_refused_at_once(
    desk: Desk, scope: Scope, values: dict[str, object], unset: tuple[str, ...], reason: Refusal
) -> None:
    desk.create("orders")
    with refused(reason):
        desk.topics.change(scope, values, unset, desk.told.append)


def test_a_setting_can_be_looked_at_by_others(desk: Desk) -> None:
    def check(value: object) -> None:
        raise Refused(Refusal.BAD_SETTING, f"no {value}")

    desk.topics.checks["entry_filters"] = check
    for work in (
        lambda: desk.topics.plan("orders", 1, {"entry_filters": "mine"}),
        lambda: desk.topics.plan_change(BROKER, {"entry_filters": "mine"}),
    ):
        with pytest.raises(Refused, match="no mine"):
            work()
    assert desk.topics.plan_change(BROKER, {"entry_filters": None}) == {"entry_filters": None}


def test_groups_have_filters(desk: Desk) -> None:
    desk.topics.change(Scope("group", "readers"), {"entry_filters": "mine"})
    desk.rounds.run()
    desk.again()
    assert dict(desk.topics.own(Scope("group", "readers"))) == {"entry_filters": "mine"}
    assert desk.topics.scopes() == [Scope("group", "readers")]


# Deleting


def test_a_deleted_topic_is_not_found_and_its_name_is_free_when_that_is_durable(desk: Desk) -> None:
    topic = desk.create("orders", 3, segment_ms=5)
    desk.store.save_offsets([OffsetRow("group", "orders", 0, 7, -1, "", 1)])
    desk.topics.delete("orders", desk.told.append)
    assert desk.topics.find("orders") is None
    assert desk.topics.by_id(topic.id) is None
    assert topic.leaving
    with refused(Refusal.TOPIC_EXISTS):
        desk.topics.create("orders", now_ms=7, done=desk.told.append)
    with refused(Refusal.TOPIC_EXISTS):
        desk.topics.ensure("orders", now_ms=7, done=desk.told.append)
    with refused(Refusal.UNKNOWN_TOPIC):
        desk.topics.delete("orders", desk.told.append)
    desk.rounds.run()
    assert desk.told[-1] is topic
    assert desk.listener.heard[-1] == "deleted orders"
    assert desk.topics.partition_count == 0
    again = desk.create("orders", 1)
    assert again.id != topic.id
    assert again.settings.segment_ms != 5
    desk.again()
    assert [found.id for found in desk.topics] == [again.id]
    assert list(desk.store.offsets()) == []


def test_a_deletion_that_is_undone_brings_the_topic_back(desk: Desk) -> None:
    topic = desk.create("orders", 3)
    desk.rounds.fail_with = StorageFullError("full")
    desk.topics.delete("orders", desk.told.append)
    desk.topics.change(BROKER, {"segment_ms": 9})
    desk.rounds.run()
    assert desk.refusal() is Refusal.STORAGE_FULL
    assert desk.topics.find("orders") is topic
    assert desk.topics.by_id(topic.id) is topic
    assert not topic.leaving
    assert desk.topics.partition_count == 3


def test_settings_that_change_while_a_topic_leaves_hold_if_it_stays(desk: Desk) -> None:
    topic = desk.create("orders", 3)
    desk.topics.change(BROKER, {"segment_ms": 9})
    desk.topics.delete("orders", desk.told.append)
    waiting = desk.rounds._waiting.pop()
    desk.rounds.run()
    desk.rounds._waiting.append(waiting)
    desk.rounds.fail_with = StorageFullError("full")
    desk.rounds.run()
    assert topic.settings.segment_ms == 9


def test_a_topic_that_grows_can_be_deleted(desk: Desk) -> None:
    desk.create("orders", 3)
    desk.topics.grow("orders", 5, desk.told.append)
    desk.topics.delete("orders", desk.told.append)
    desk.rounds.run()
    assert desk.topics.partition_count == 0
    desk.again()
    assert len(desk.topics) == 0


def test_who_asks_for_a_topic_that_cannot_be_is_told_why(desk: Desk) -> None:
    with refused(Refusal.UNKNOWN_TOPIC):
        desk.topics.get("orders")
    with refused(Refusal.BAD_TOPIC_NAME):
        desk.topics.get("no name")
    assert desk.topics.by_id(UUID(int=0)) is None


def test_things_tell_their_state(desk: Desk) -> None:
    topic = desk.create("orders", 3)
    assert repr(topic) == f"<Topic orders of 3 {topic.id}>"
    assert repr(desk.topics) == "<Topics 1 with 3 partitions>"
