"""Topics: their ids, partitions and settings; how they are created, grown, changed and deleted.

A topic is a row of the store. What is decided here becomes true when its row is durable, and until then nobody sees it:

| change   | until it is durable                      | then                             | if it is undone   |
|----------|------------------------------------------|----------------------------------|-------------------|
| create   | the name is taken, nobody finds it       | it is found                      | the name is free  |
| grow     | it cannot be grown again                 | the new partitions are found     | as before         |
| settings | the old ones hold                        | the new ones hold                | as before         |
| delete   | the name is taken, nobody finds it       | listeners are told, its files go | it is found again |

Files follow rows: a partition's files are made when it is first opened, and files without a row are swept at start. So
no moment at which the process ends leaves anything half done. A topic that is created again has another id, and so
other files: it starts at position 0 whatever became of the old ones.

What is asked for and cannot be is `Refused` at once, and nothing is called; otherwise `done` is called exactly once.
Runs on: the loop thread.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

from penstock.broker.names import DEFAULT_NAMESPACE, TopicName, check_namespace, parse_topic
from penstock.broker.refusals import Refusal, Refused, refusal_of
from penstock.broker.settings import BrokerSettings, TopicSettings, read_topic_settings, resolve, topic_setting
from penstock.broker.store import Done, Scope, Store, TopicRow, drop_settings, drop_topic, put_settings, put_topic

BROKER: Final = Scope("broker")
GROUP_SETTINGS: Final = frozenset({"entry_filters"})
"""What can be set for a group; everything else is a topic's."""


class Topic:
    """One topic. Its fields are for reading; `Topics` changes them."""

    __slots__ = ("created_ms", "growing", "id", "leaving", "name", "partitioned", "partitions", "settings", "where")

    def __init__(self, row: TopicRow, settings: TopicSettings) -> None:
        self.id: Final = row.id
        self.name: Final = row.name
        """What everybody calls it."""
        self.where: Final = parse_topic(row.name)
        """Its namespace and full name."""
        self.partitions = row.partitions
        self.partitioned: Final = row.partitioned
        """False for a topic that is one log and cannot grow."""
        self.created_ms: Final = row.created_ms
        self.settings = settings
        """What holds for it, from wherever it was set."""
        self.growing = False
        self.leaving = False
        """Whether it is being deleted."""

    @property
    def row(self) -> TopicRow:
        """The topic as the store knows it."""
        return TopicRow(self.id, self.name, self.partitions, self.partitioned, self.created_ms)

    def __repr__(self) -> str:
        return f"<Topic {self.name} of {self.partitions} {self.id}>"


class TopicListener(Protocol):
    """Who is told what became true. Told on the loop thread, before whoever asked for it."""

    def topic_created(self, topic: Topic) -> None:
        """It can be found from now on."""

    def topic_grown(self, topic: Topic) -> None:
        """It has more partitions."""

    def topic_deleted(self, topic: Topic) -> None:
        """It is gone, and all that the store knew of it: its cursors, and the groups' offsets in it."""

    def settings_changed(self, scope: Scope, values: Mapping[str, object], unset: Collection[str]) -> None:
        """These values were set, these taken back. `topic.settings` are new already."""


TopicDone: TypeAlias = Callable[["Topic | Exception"], None]


class Topics:
    """All topics of a broker."""

    def __init__(self, store: Store, settings: BrokerSettings, new_id: Callable[[], uuid.UUID] = uuid.uuid4) -> None:
        self._store = store
        self._settings = settings
        self._new_id = new_id
        self._set = store.settings()
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._arriving: dict[str, list[TopicDone]] = {}
        self._arriving_partitions = 0
        self._leaving: dict[str, Topic] = {}
        self._partitions = 0
        self.checks: dict[str, Callable[[object], None]] = {}
        """Who looks at a setting's new value before it is taken, and may raise Refused."""
        self.listeners: list[TopicListener] = []
        for row in store.topics():
            self._partitions += row.partitions
            self._add(self._made(row))

    def __repr__(self) -> str:
        return f"<Topics {len(self._by_name)} with {self._partitions} partitions>"

    # Finding

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Topic]:
        """All topics, in no order."""
        return iter(list(self._by_name.values()))

    @property
    def partition_count(self) -> int:
        """Partitions of all topics."""
        return self._partitions

    def find(self, name: str) -> Topic | None:
        """The topic of that name, flat or in full."""
        topic = self._by_name.get(name)
        if topic is None and name.startswith(f"{DEFAULT_NAMESPACE}/"):
            topic = self._by_name.get(name[len(DEFAULT_NAMESPACE) + 1 :])
        return topic

    def get(self, name: str) -> Topic:
        """The topic of that name; Refused when there is none, or none can be."""
        topic = self.find(name)
        if topic is None:
            raise Refused(Refusal.UNKNOWN_TOPIC, f"there is no topic {parse_topic(name).name}")
        return topic

    def by_id(self, topic_id: uuid.UUID) -> Topic | None:
        """The topic of that id."""
        return self._by_id.get(topic_id)

    # Creating

    def plan(
        self,
        name: str,
        partitions: int | None = None,
        settings: Mapping[str, object] | None = None,
        partitioned: bool = True,
        now_ms: int = 0,
    ) -> tuple[TopicRow, dict[str, object]]:
        """The topic that `create` would make, with its settings; Refused when it could not."""
        where = parse_topic(name)
        if where.name in self._by_name or where.name in self._arriving or where.name in self._leaving:
            raise Refused(Refusal.TOPIC_EXISTS, f"there is a topic {where.name} already")
        count = (self._settings.partitions_default if partitioned else 1) if partitions is None else partitions
        if not partitioned and count != 1:
            raise Refused(Refusal.BAD_PARTITION_COUNT, f"a topic without partitions is one log, not {count}")
        self._check_count(where, count, count)
        own = read_topic_settings(settings or {})
        self._check_values(own)
        return TopicRow(self._new_id(), where.name, count, partitioned, now_ms), own

    def create(
        self,
        name: str,
        partitions: int | None = None,
        settings: Mapping[str, object] | None = None,
        *,
        now_ms: int,
        done: TopicDone,
        partitioned: bool = True,
    ) -> None:
        """Create a topic, with as many partitions as is usual here if None is given."""
        row, own = self.plan(name, partitions, settings, partitioned, now_ms)
        self._arriving[row.name] = [done]
        self._arriving_partitions += row.partitions

        def work(db: sqlite3.Connection) -> None:
            put_topic(db, row)
            put_settings(db, Scope("topic", row.name), own)

        self._store.write(work, lambda error: self._created(row, own, error))

    def ensure(self, name: str, *, now_ms: int, done: TopicDone) -> None:
        """The topic of that name, created if it is not there and the broker does that; Refused when it does not."""
        topic = self.find(name)
        if topic is not None:
            done(topic)
            return
        where = parse_topic(name)
        waiting = self._arriving.get(where.name)
        if waiting is not None:
            waiting.append(done)
        elif not self._settings.topics_auto_create:
            raise Refused(Refusal.UNKNOWN_TOPIC, f"there is no topic {where.name}, and none is created by use")
        else:
            self.create(where.name, now_ms=now_ms, done=done)

    # Changing

    def plan_growth(self, name: str, partitions: int) -> Topic:
        """The topic that `grow` would grow; Refused when it could not."""
        topic = self.get(name)
        if not topic.partitioned:
            raise Refused(Refusal.BAD_PARTITION_COUNT, f"{topic.name} is one log, without partitions")
        if partitions <= topic.partitions:
            text = f"{topic.name} has {topic.partitions} partitions, and {partitions} are not more"
            raise Refused(Refusal.BAD_PARTITION_COUNT, text)
        if topic.growing:
            raise Refused(Refusal.BAD_PARTITION_COUNT, f"{topic.name} is growing already")
        self._check_count(topic.where, partitions, partitions - topic.partitions)
        return topic

    def grow(self, name: str, partitions: int, done: TopicDone) -> None:
        """Give a topic more partitions: so many altogether."""
        topic = self.plan_growth(name, partitions)
        added = partitions - topic.partitions
        row = topic.row._replace(partitions=partitions)
        topic.growing = True
        self._arriving_partitions += added
        self._store.write(lambda db: put_topic(db, row), lambda error: self._grown(topic, added, done, error))

    def plan_change(self, scope: Scope, values: Mapping[str, object], unset: Collection[str] = ()) -> dict[str, object]:
        """The values that `change` would set, canonical; Refused when it could not."""
        self._check_scope(scope, {*values, *unset})
        read = read_topic_settings(values)
        self._check_values(read)
        return read

    def change(
        self, scope: Scope, values: Mapping[str, object], unset: Collection[str] = (), done: Done | None = None
    ) -> None:
        """Set values for the broker, a namespace, a topic or a group, and take others back."""
        read = self.plan_change(scope, values, unset)
        gone = frozenset(unset) - read.keys()

        def work(db: sqlite3.Connection) -> None:
            put_settings(db, scope, read)
            drop_settings(db, scope, gone)

        self._store.write(work, lambda error: self._changed(scope, read, gone, done, error))

    def own(self, scope: Scope) -> Mapping[str, object]:
        """What was set there, and nowhere else."""
        return MappingProxyType(self._set.get(scope, {}))

    def scopes(self) -> list[Scope]:
        """Where something was set."""
        return [scope for scope, values in self._set.items() if values]

    # Deleting

    def delete(self, name: str, done: TopicDone) -> None:
        """Delete a topic: its entries, its cursors, and the groups' offsets in it."""
        topic = self.get(name)
        self._remove(topic)
        topic.leaving = True
        self._leaving[topic.name] = topic
        row = topic.row
        self._store.write(lambda db: drop_topic(db, row), lambda error: self._deleted(topic, done, error))

    # When it is durable, or undone

    def _created(self, row: TopicRow, own: dict[str, object], error: Exception | None) -> None:
        waiting = self._arriving.pop(row.name)
        self._arriving_partitions -= row.partitions
        outcome: Topic | Exception
        if error is not None:
            outcome = refusal_of(error)
        else:
            if own:
                self._set[Scope("topic", row.name)] = own
            outcome = self._made(row)
            self._partitions += row.partitions
            self._add(outcome)
            for listener in self.listeners:
                listener.topic_created(outcome)
        for done in waiting:
            done(outcome)

    def _grown(self, topic: Topic, added: int, done: TopicDone, error: Exception | None) -> None:
        topic.growing = False
        self._arriving_partitions -= added
        if error is not None:
            done(refusal_of(error))
            return
        topic.partitions += added
        self._partitions += added
        for listener in self.listeners:
            listener.topic_grown(topic)
        done(topic)

    def _changed(
        self,
        scope: Scope,
        values: dict[str, object],
        unset: Collection[str],
        done: Done | None,
        error: Exception | None,
    ) -> None:
        if error is None:
            held = self._set.setdefault(scope, {})
            held.update(values)
            for name in unset:
                held.pop(name, None)
            for topic in self._concerned(scope):
                topic.settings = self._resolved(topic.where)
            for listener in self.listeners:
                listener.settings_changed(scope, values, unset)
        if done is not None:
            done(None if error is None else refusal_of(error))

    def _deleted(self, topic: Topic, done: TopicDone, error: Exception | None) -> None:
        del self._leaving[topic.name]
        if error is not None:
            topic.leaving = False
            self._add(topic)
            done(refusal_of(error))
            return
        self._partitions -= topic.partitions
        self._set.pop(Scope("topic", topic.name), None)
        for listener in self.listeners:
            listener.topic_deleted(topic)
        done(topic)

    # Pieces

    def _made(self, row: TopicRow) -> Topic:
        return Topic(row, self._resolved(parse_topic(row.name)))

    def _add(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.id] = topic

    def _remove(self, topic: Topic) -> None:
        del self._by_name[topic.name]
        del self._by_id[topic.id]

    def _resolved(self, where: TopicName) -> TopicSettings:
        scopes = (Scope("topic", where.name), Scope("namespace", where.namespace), BROKER)
        return resolve(*(self._set.get(scope, {}) for scope in scopes), self._settings.topics)

    def _concerned(self, scope: Scope) -> list[Topic]:
        if scope.kind == "topic":
            topic = self._by_name.get(scope.name) or self._leaving.get(scope.name)
            return [] if topic is None else [topic]
        if scope.kind == "group":
            return []
        everyone = [*self._by_name.values(), *self._leaving.values()]
        return [topic for topic in everyone if scope == BROKER or topic.where.namespace == scope.name]

    def _check_count(self, where: TopicName, partitions: int, added: int) -> None:
        most, total = self._settings.partitions_max, self._settings.partitions_total_max
        if not 1 <= partitions <= most:
            text = f"{where.name} can have 1 to {most} partitions, not {partitions}"
            raise Refused(Refusal.BAD_PARTITION_COUNT, text)
        if self._partitions + self._arriving_partitions + added > total:
            raise Refused(Refusal.BAD_PARTITION_COUNT, f"{added} more partitions would be more than {total} altogether")

    def _check_scope(self, scope: Scope, names: Collection[str]) -> None:
        for name in names:
            topic_setting(name)
        if scope.kind == "topic":
            if self.get(scope.name).name != scope.name:
                raise Refused(Refusal.BAD_SETTING, f"the topic {scope.name} is called {self.get(scope.name).name}")
        elif scope.kind == "namespace":
            check_namespace(scope.name)
        elif scope.kind == "group":
            for name in sorted(set(names) - GROUP_SETTINGS):
                raise Refused(Refusal.BAD_SETTING, f"{name} cannot be set for a group")
        elif scope != BROKER:
            raise Refused(Refusal.BAD_SETTING, f"there is nothing to set for {scope.kind} {scope.name}")

    def _check_values(self, values: Mapping[str, object]) -> None:
        for name, check in self.checks.items():
            if values.get(name) is not None:
                check(values[name])
