"""Consumer groups moved to the target of a copy, embedded to embedded and on a real Kafka."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError

import penstock
from brokers.kafka import KafkaCluster
from penstock import Client
from penstock.broker.embedded import EmbeddedBroker
from penstock.errors import ConfigError, RefusedError, UnknownTopicError
from penstock.replicate.mirror_formats import Checkpoint, OffsetSync, checkpoints_topic, syncs_topic
from penstock.replicate.point_log import PointWriter
from penstock.replicate.position_map import Point
from penstock.replicate.translate import Move, Translator
from penstock.wire.protocol import Mark, Partition
from tests.consume.faces import new_id
from tests.replicate.copier import LIMIT_S, SmallCopier
from tests.replicate.mirror import ask
from tests.replicate.test_point_log import delete_before

PARTITIONS = 3


@dataclass(frozen=True, slots=True)
class Pair:
    """A source and a target, and one topic that is copied."""

    source: Client
    target: Client
    bootstraps: tuple[str, str]
    alias: str
    topic: str

    @property
    def renamed(self) -> str:
        return self.rename(self.topic)

    def rename(self, topic: str) -> str:
        return f"{self.alias}.{topic}"

    def translator(self, **options: Any) -> Translator:
        return Translator(self.source, self.target, self.alias, self.rename, **options)

    def create(self, partitions: int = PARTITIONS) -> None:
        self.source.create_topic(self.topic, partitions)
        self.target.create_topic(self.renamed, partitions)

    def tell(self, *points: tuple[int, int], partition: int = 0) -> None:
        """Points of the topic, as if it had been copied so."""
        writer = PointWriter(self.target, self.alias)
        log = self.target.metadata([self.renamed]).topics[self.renamed].id
        for point in points:
            writer.tell(Partition(self.topic, partition), Point(*point), log).result(LIMIT_S)
        writer.close()

    def fill(self, count: int, partition: int = 0) -> None:
        """Messages at the target."""
        with self.target.producer(self.renamed) as producer:
            producer.send_many([b"x"] * count, partition=partition).result(LIMIT_S)


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[EmbeddedBroker, EmbeddedBroker]]:
    with penstock.embedded() as source, penstock.embedded() as target:
        yield source, target


@contextmanager
def pair_of(source: Any, target: Any) -> Iterator[Pair]:
    unique = uuid.uuid4().hex[:8]
    with (
        penstock.connect(source.url, client_id=new_id()) as here,
        penstock.connect(target.url, client_id=new_id()) as there,
    ):
        yield Pair(here, there, (source.bootstrap, target.bootstrap), f"west-{unique}", f"orders-{unique}")


@pytest.fixture
def embedded(brokers: tuple[EmbeddedBroker, EmbeddedBroker]) -> Iterator[Pair]:
    with pair_of(*brokers) as made:
        yield made


@pytest.fixture(params=["embedded", "kafka"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Each kind of cluster in turn; the real Kafka is both sides."""
    if request.param == "embedded":
        sides = request.getfixturevalue("brokers")
    else:
        kafka: KafkaCluster = request.getfixturevalue("real_kafka")
        sides = (kafka, kafka)
    with pair_of(*sides) as made:
        yield made


# Groups of an official client


@contextmanager
def consumer(bootstrap: str, group: str, topic: str, **settings: Any) -> Iterator[Consumer]:
    base: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    base |= {"auto.offset.reset": "error", "fetch.wait.max.ms": 50, "fetch.queue.backoff.ms": 5}
    opened = Consumer(base | settings)
    try:
        opened.subscribe([topic])
        yield opened
    finally:
        opened.close()


def take(reading: Consumer, count: int) -> list[bytes]:
    """So many messages."""
    taken: list[bytes] = []
    over = time.monotonic() + LIMIT_S
    while len(taken) < count and time.monotonic() < over:
        for message in reading.consume(count - len(taken), 0.2):
            assert message.error() is None, message.error()
            taken.append(message.value() or b"")
    return taken


def take_all(reading: Consumer, partitions: int) -> list[bytes]:
    """All messages up to the end of each partition."""
    taken: list[bytes] = []
    ended: set[int | None] = set()
    over = time.monotonic() + LIMIT_S
    while len(ended) < partitions and time.monotonic() < over:
        for message in reading.consume(1000, 0.2):
            if (error := message.error()) is None:
                taken.append(message.value() or b"")
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
    assert len(ended) == partitions
    return taken


def written(pair: Pair, count: int, chance: random.Random) -> list[bytes]:
    """Messages at the source, some of them in transactions that were committed or aborted; those that count."""
    counting: list[bytes] = []
    plain = pair.source.producer(pair.topic)
    within = pair.source.producer(pair.topic, transactional_id=f"{pair.topic}-source")
    for number in range(0, count, 10):
        values = [b"%d" % (number + each) for each in range(10)]
        partition, kind = chance.randrange(PARTITIONS), chance.choice(["plain", "committed", "aborted"])
        if kind == "plain":
            plain.send_many(values, partition=partition).result(LIMIT_S)
        else:
            with within.transaction() as transaction:
                within.send_many(values, partition=partition).result(LIMIT_S)
                if kind == "aborted":
                    transaction.abort()
        counting += [] if kind == "aborted" else values
    plain.close()
    within.close()
    return counting


def keep(value: bytes) -> bool:
    return int(value) % 7 != 0


def copy_all(pair: Pair, copier: SmallCopier, chance: random.Random) -> None:
    """Copy everything in transactions of many sizes, some of which are aborted and done again."""
    with pair.source.reader(pair.topic, "latest", "latest") as reader:
        reader.ready(LIMIT_S)
        ends = reader.positions()
    for number, end in ends.items():
        position = 0
        while position < end:
            position = min(position + chance.randrange(1, 60), end)
            if chance.random() < 0.3:
                copier.copy(number, position, abort=True)
            copier.copy(number, position)


@pytest.mark.parametrize("share", [0, 0.37, 1])
def test_a_group_goes_on_at_the_target_without_loss_and_without_repeats(pair: Pair, share: float) -> None:
    chance = random.Random(f"{share}")
    pair.create()
    sent = written(pair, 600, chance)
    copier = SmallCopier(pair.source, pair.target, pair.alias, pair.topic, pair.renamed, keep)
    copy_all(pair, copier, chance)
    copier.close()
    with consumer(pair.bootstraps[0], "billing", pair.topic, **{"auto.offset.reset": "earliest"}) as reading:
        before = take(reading, max(int(len(sent) * share), 1))
        reading.commit(asynchronous=False)
    marked = pair.source.cursor(pair.topic, "billing").positions()
    for number in set(range(PARTITIONS)) - set(marked):
        pair.source.cursor(pair.topic, "billing").commit({number: 0})

    moves = pair.translator(copier=copier.group).translate("billing")

    assert [move.why_not for move in moves] == [""] * PARTITIONS
    rest = sorted(set(sent) - set(before))
    with consumer(pair.bootstraps[1], "billing", pair.renamed, **{"enable.partition.eof": True}) as reading:
        after = take_all(reading, PARTITIONS)
    assert sorted(after) == [value for value in rest if keep(value)]


def test_every_position_of_a_copy_is_found_both_ways(pair: Pair) -> None:
    chance = random.Random(3)
    pair.create()
    written(pair, 300, chance)
    copier = SmallCopier(pair.source, pair.target, pair.alias, pair.topic, pair.renamed, keep)
    copy_all(pair, copier, chance)
    copier.close()
    columns = ["partition", "position", "value"]
    here = pair.source.reader(pair.topic, end="latest", columns=columns).read_all(LIMIT_S).to_pylist()
    there = pair.target.reader(pair.renamed, end="latest", columns=columns).read_all(LIMIT_S).to_pylist()
    places = {row["value"]: row for row in there}
    translator = pair.translator()
    maps = [translator.map_of(pair.topic, number) for number in range(PARTITIONS)]
    kept = [row for row in here if keep(row["value"])]
    assert len(kept) == len(places) > 100
    for row in kept:
        found = maps[row["partition"]]
        assert found.target_of(row["position"]) == places[row["value"]]["position"]
        assert found.source_of(places[row["value"]]["position"]) == row["position"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_at_the_target_is_refused(pair: Pair, protocol: str) -> None:
    settings = {"auto.offset.reset": "earliest", "group.protocol": protocol}
    pair.create(1)
    pair.fill(5)
    pair.tell((0, 0))
    pair.source.cursor(pair.topic, "busy").commit({0: 3})
    with consumer(pair.bootstraps[1], "busy", pair.renamed, **settings) as reading:
        assert len(take(reading, 1)) == 1
        with pytest.raises(RefusedError, match="group busy has members at the target: stop them") as error:
            pair.translator().translate("busy")
        assert error.value.code == "UNKNOWN_MEMBER_ID"
        assert pair.target.cursor(pair.renamed, "busy").positions() == {}
        assert pair.translator().translate("busy", "idle")[0].why_not == "", "under another name it is free to go"
    assert pair.translator().translate("busy")[0].position == 3
    assert pair.target.cursor(pair.renamed, "busy").positions() == {0: 3}
    assert pair.target.cursor(pair.renamed, "idle").positions() == {0: 3}


# What is told of moves


def test_a_move_tells_both_sides_and_takes_the_note_along(embedded: Pair) -> None:
    embedded.create(2)
    embedded.fill(30, 1)
    embedded.tell((100, 20), partition=1)
    embedded.source.cursor(embedded.topic, "g").commit({1: Mark(105, "a note", 4)})
    (move,) = embedded.translator().translate("g", "h")
    source, target = Partition(embedded.topic, 1), Partition(embedded.renamed, 1)
    assert move == Move(source, target, Mark(105, "a note", 4), 25)
    assert str(move) == f"{source}, position 105: {target}, position 25"
    assert embedded.target.cursor(embedded.renamed, "h").marks() == {1: Mark(25, "a note")}
    assert embedded.target.cursor(embedded.renamed, "g").marks() == {}


def test_where_the_copy_is_behind_a_group_is_not_moved_unless_it_may_read_again(embedded: Pair) -> None:
    embedded.create(1)
    embedded.source.producer(embedded.topic).send_many([b"%d" % i for i in range(1, 41)]).result(LIMIT_S)
    everything = (embedded.source, embedded.target, embedded.alias, embedded.topic, embedded.renamed)
    copier = SmallCopier(*everything, lambda _: True)
    embedded.source.cursor(embedded.topic, "g").commit({0: 30})
    translator = embedded.translator(copier=copier.group)
    assert translator.translate("g")[0].behind == 30, "it has only begun"
    copier.copy(0, 25)
    there = embedded.target.cursor(embedded.renamed, "g")
    (move,) = translator.translate("g")
    assert (move.behind, move.why_not) == (5, "the copy is 5 positions behind; wait for it, or allow repeats")
    assert "not moved: the copy is 5" in str(move)
    assert there.positions() == {}
    (move,) = translator.translate("g", repeats=True)
    assert (move.behind, move.position, move.why_not) == (5, 25, ""), "behind the messages, at their marker"
    assert there.positions() == {0: 25}
    copier.copy(0, 40)
    (move,) = translator.translate("g")
    assert (move.behind, move.position, move.why_not) == (0, 31, "")
    assert there.positions() == {0: 31}
    copier.close()


def test_a_group_that_is_further_on_at_the_target_is_not_moved_back(embedded: Pair) -> None:
    embedded.create(2)
    for number in range(2):
        embedded.fill(30, number)
        embedded.tell((0, 0), partition=number)
    embedded.source.cursor(embedded.topic, "g").commit({0: 10, 1: 10})
    there = embedded.target.cursor(embedded.renamed, "g")
    there.commit({0: 11, 1: 10})
    moves = embedded.translator().translate("g")
    assert [move.why_not for move in moves] == ["it is at position 11 already; to move it back, allow repeats", ""]
    assert there.positions() == {0: 11, 1: 10}
    assert [move.why_not for move in embedded.translator().translate("g", repeats=True)] == ["", ""]
    assert there.positions() == {0: 10, 1: 10}


def test_positions_that_are_not_known_are_told_and_left(embedded: Pair) -> None:
    embedded.source.create_topic(embedded.topic, 4)
    embedded.target.create_topic(embedded.renamed, 3)
    embedded.fill(10, 0)
    embedded.fill(10, 1)
    embedded.tell((50, 0))
    embedded.source.cursor(embedded.topic, "g").commit({0: 49, 1: 5, 3: 1})
    moves = embedded.translator().translate("g")
    assert [(move.position, move.why_not) for move in moves] == [
        (None, "nothing was told of its copy before position 50"),
        (None, "nothing was told of its copy"),
        (None, "the target has no partition 3"),
    ]
    assert str(moves[0]).endswith(f"{embedded.renamed}-0, nowhere, not moved: {moves[0].why_not}")
    assert embedded.target.cursor(embedded.renamed, "g").positions() == {}
    embedded.source.cursor(embedded.topic, "g").commit({0: 55})
    moves = embedded.translator().translate("g")
    assert [move.position for move in moves] == [5, None, None], "each partition for itself"
    assert embedded.target.cursor(embedded.renamed, "g").positions() == {0: 5}


def test_what_the_target_has_deleted_is_told(embedded: Pair) -> None:
    embedded.create(1)
    embedded.fill(10)
    embedded.tell((0, 0))
    delete_before(embedded.bootstraps[1], embedded.renamed, 6)
    cursor = embedded.source.cursor(embedded.topic, "g")
    cursor.commit({0: 5})
    (move,) = embedded.translator().translate("g")
    assert (move.position, move.why_not) == (5, "the target has deleted what was before position 6")
    cursor.commit({0: 6})
    assert embedded.translator().translate("g")[0].why_not == ""


def test_a_position_is_never_behind_what_readers_of_the_committed_see(embedded: Pair) -> None:
    embedded.create(1)
    embedded.fill(10)
    producer = embedded.target.producer(embedded.renamed, transactional_id=embedded.alias)
    embedded.source.cursor(embedded.topic, "g").commit({0: 15})
    with producer.transaction() as transaction:
        producer.send_many([b"x"] * 10, partition=0).result(LIMIT_S)
        embedded.tell((0, 0))
        assert embedded.translator().translate("g")[0].position == 10
        transaction.abort()


class Meddling:
    """A client at whose side something happens just before the ends of a topic are looked up."""

    def __init__(self, client: Client, topic: str, meddle: Callable[[], None]) -> None:
        self._client = client
        self._topic = topic
        self._meddle = meddle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def reader(self, topic: str, start: Any, *places: Any, **options: Any) -> Any:
        if (topic, start) == (self._topic, "latest"):
            self._meddle()
        return self._client.reader(topic, start, *places, **options)


def test_a_copy_that_goes_on_meanwhile_makes_no_group_miss_messages(embedded: Pair) -> None:
    embedded.create(1)
    embedded.source.producer(embedded.topic).send_many([b"%d" % number for number in range(70)]).result(LIMIT_S)
    everything = (embedded.source, embedded.target, embedded.alias, embedded.topic, embedded.renamed)
    copier = SmallCopier(*everything, lambda value: not 10 <= int(value) < 60)
    copier.copy(0, 10)
    embedded.source.cursor(embedded.topic, "g").commit({0: 40})
    meddling: Any = Meddling(embedded.target, embedded.renamed, lambda: copier.copy(0, 70))
    (move,) = Translator(embedded.source, meddling, embedded.alias, embedded.rename).translate("g")
    copier.close()
    assert move.position is not None
    rest = embedded.target.reader(embedded.renamed, {0: move.position}, "latest", columns=["value"]).read_all(LIMIT_S)
    assert rest.column("value").to_pylist() == [b"%d" % number for number in range(60, 70)]


def test_points_of_a_topic_that_was_made_anew_do_not_count(embedded: Pair) -> None:
    embedded.create(1)
    embedded.fill(30)
    embedded.tell((0, 0), (10, 20))
    embedded.source.cursor(embedded.topic, "g").commit({0: 12})
    assert embedded.translator().translate("g", "before")[0].position == 22
    embedded.target.delete_topic(embedded.renamed)
    embedded.target.create_topic(embedded.renamed, 1)
    embedded.fill(30)
    assert embedded.translator().translate("g")[0].why_not == "nothing was told of its copy"
    embedded.tell((11, 0))
    assert embedded.translator().translate("g")[0].position == 1


def test_offset_syncs_of_mirrormaker_serve_as_well(embedded: Pair) -> None:
    embedded.create(1)
    embedded.fill(30)
    embedded.target.create_topic(syncs_topic(embedded.alias), 1)
    with embedded.target.producer(syncs_topic(embedded.alias)) as producer:
        key, value = OffsetSync(embedded.topic, 0, 100, 3).encode()
        producer.send(value, key)
    embedded.source.cursor(embedded.topic, "g").commit({0: 110})
    assert embedded.translator().translate("g")[0].position == 13


# Which topics, which groups


def test_only_topics_that_are_named_are_moved(embedded: Pair) -> None:
    other = f"{embedded.topic}-other"
    for topic in (embedded.topic, other):
        embedded.source.create_topic(topic, 1)
        embedded.target.create_topic(embedded.rename(topic), 1)
        embedded.source.cursor(topic, "g").commit({0: 0})
        writer = PointWriter(embedded.target, embedded.alias)
        writer.tell(Partition(topic, 0), Point(0, 0), None).result(LIMIT_S)
        writer.close()
    translator = embedded.translator()
    assert translator.topics() == sorted([embedded.topic, other])
    assert [move.source.topic for move in translator.translate("g", topics=[other, other])] == [other]
    assert embedded.target.cursor(embedded.renamed, "g").positions() == {}
    assert len(translator.translate("g")) == 2
    embedded.source.delete_topic(other)
    assert translator.topics() == [embedded.topic], "what is gone at the source has no groups"


def test_a_target_topic_that_is_not_there_is_told(embedded: Pair) -> None:
    embedded.create(1)
    embedded.tell((0, 0))
    embedded.source.cursor(embedded.topic, "g").commit({0: 0})
    elsewhere = Translator(embedded.source, embedded.target, embedded.alias, lambda topic: f"other.{topic}")
    (move,) = elsewhere.translate("g")
    assert (move.target.topic, move.why_not) == (f"other.{embedded.topic}", "the target has no such topic")
    with pytest.raises(UnknownTopicError, match=r"other\."):
        elsewhere.map_of(embedded.topic, 0)


def test_a_group_that_nobody_knows_is_an_error(embedded: Pair) -> None:
    embedded.create(1)
    embedded.tell((0, 0))
    with pytest.raises(ConfigError, match="group: 'typo' has committed nothing at the source"):
        embedded.translator().translate("typo")


def test_what_is_no_list_of_names_is_refused(embedded: Pair) -> None:
    embedded.create(1)
    embedded.tell((0, 0))
    translator = embedded.translator()
    refused: list[tuple[str, Callable[[], object]]] = [
        ("topics: expected a list", lambda: translator.translate("g", topics="orders")),
        ("groups: expected a list of names, found None", translator.write_checkpoints),
        ("groups: expected a list of names, found 'g'", lambda: translator.write_checkpoints("g")),
    ]
    for text, call in refused:
        with pytest.raises(ConfigError, match=text):
            call()
    merging = Translator(embedded.source, embedded.target, embedded.alias, lambda _: "one")
    with pytest.raises(ConfigError, match="topics: a: at the target it has the name of another one's copy"):
        merging.translate("g", topics=["a", "b"])


def test_nothing_copied_under_this_alias_is_an_error(embedded: Pair) -> None:
    embedded.create(1)
    with pytest.raises(UnknownTopicError, match="under this alias"):
        embedded.translator().translate("g")


# Checkpoints


def stored_checkpoints(pair: Pair) -> list[Checkpoint]:
    with pair.target.reader(checkpoints_topic(pair.alias), end="latest", columns=["key", "value"]) as reader:
        return [Checkpoint.decode(row["key"], row["value"]) for row in reader.read_all(LIMIT_S).to_pylist()]


def test_checkpoints_are_written_when_they_change(embedded: Pair) -> None:
    embedded.create(2)
    for number in range(2):
        embedded.fill(30, number)
        embedded.tell((100, 5), partition=number)
    embedded.source.cursor(embedded.topic, "a").commit({0: Mark(110, "note"), 1: 120})
    embedded.source.cursor(embedded.topic, "b").commit({0: 101, 1: 7})
    translator = embedded.translator()
    expected = [
        Checkpoint("a", embedded.renamed, 0, 110, 15, "note"),
        Checkpoint("a", embedded.renamed, 1, 120, 25),
        Checkpoint("b", embedded.renamed, 0, 101, 6),
    ]
    assert translator.write_checkpoints(["a", "b", "nobody"]) == expected
    assert stored_checkpoints(embedded) == expected
    assert embedded.target.cursor(embedded.renamed, "a").positions() == {}, "nothing was moved"
    assert translator.write_checkpoints(["a", "b"], [embedded.topic]) == []
    embedded.source.cursor(embedded.topic, "b").commit({0: 102})
    later = [Checkpoint("b", embedded.renamed, 0, 102, 7)]
    assert translator.write_checkpoints(["a", "b"]) == later
    assert stored_checkpoints(embedded) == expected + later
    embedded.target.delete_topic(checkpoints_topic(embedded.alias))
    assert translator.write_checkpoints(["b"]) == later, "all of it where the topic is new"


def test_mirrormaker_finds_the_group_where_it_was_moved(real_kafka: KafkaCluster) -> None:
    with pair_of(real_kafka, real_kafka) as pair:
        pair.create(2)
        for number in range(2):
            pair.fill(30, number)
            pair.tell((100, 5), partition=number)
        pair.source.cursor(pair.topic, "billing").commit({0: Mark(110, "note"), 1: 120})
        translator = pair.translator()
        translator.translate("billing", "moved")
        question = ("translate", pair.bootstraps[1], pair.alias, "billing")
        assert ask([question]) == [[f"{pair.renamed}-0 15 note", f"{pair.renamed}-1 25 "]]
        pair.source.cursor(pair.topic, "billing").commit({0: 111})
        translator.write_checkpoints(["billing"])
        assert ask([question]) == [[f"{pair.renamed}-0 16 ", f"{pair.renamed}-1 25 "]]
        assert pair.target.cursor(pair.renamed, "moved").positions() == {0: 15, 1: 25}
