"""Seeded runs of several producers on a cluster in trouble, and what must hold at their end.

Each run draws which kinds of trouble there are at all, since trouble of all kinds at once hides what a single one does.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.config import BatchIo, BatchPolicy
from penstock.errors import BusyError, ClosedError, MessageError, NoRoomError, PenstockError, Persisted
from penstock.message import MessageId
from penstock.produce.kernel import Receipt
from penstock.produce.router import HASHES, OwnRouter, PartialRoundRobin, RoundRobin, Routed, Single, Spread, Sticky
from penstock.wire.kafka.codes import TABLE
from tests.net.memory import Faults
from tests.produce.harness import Harness, Line
from tests.produce.kits import OWN, load_kit
from tests.produce.model import BAD, DUPLICATE, ModelBroker, Row

USUAL_CODES = (-1, 2, 3, 5, 6, 7, 9, 10, 13, 19, 20, 29, 46, 56, 72, 74, 87)
NUMBER_CODES = (45, 47, 59, 90)
"""Codes that speak of numbers: a broker says them only of what it has not stored and will not store."""
ALL_CODES = tuple(row.number for row in TABLE)
REGIONS = (None, "us", "eu", "mars")
REFUSALS = (NoRoomError, ClosedError, BusyError, MessageError, ValueError)
"""What `send` may raise in a run: nothing was taken then."""
STEPS = 12


@dataclass
class Sent:
    """A message that was sent, and what is to be found of it."""

    line: int
    number: int
    topic: str
    row: Row
    receipt: Receipt
    group: tuple[str | None, ...]
    """What its order is kept within, beside its partition."""
    early: bool
    """Whether it named its partition before the topic was known."""
    known: bool
    calls: list[Any] | None
    """What its callback heard; None where it has none."""
    partition: int | None
    """The one it named."""


class Trouble:
    """Which kinds of trouble a run has, and how often."""

    def __init__(self, chance: random.Random) -> None:
        def some(*rates: float) -> float:
            return chance.choice((0.0, 0.0, *rates))

        self.codes = some(0.03, 0.15, 0.4)
        self.cuts = some(0.3, 1.0)
        self.delays = some(0.1, 0.5)
        self.answers = some(0.05, 0.2)
        self.damage = some(0.02, 0.1)
        self.leaders = some(0.05, 0.2)
        self.deaths = some(0.05, 0.1)
        self.throttles = some(0.1)
        self.pieces = some(0.5)
        self.topics = some(0.05)
        self.identities = some(0.1)
        self.sizes = some(0.1)
        self.bad = some(0.03, 0.1)
        self.growth = some(0.03)
        self.closes = some(0.02)


class Chaos:
    """One run."""

    def __init__(self, seed: int, twin: str = OWN, steps: int = STEPS) -> None:
        chance = self.chance = random.Random(seed)
        self.steps = steps
        self.trouble = Trouble(chance)
        self.late = self.trouble.delays > 0
        """Whether a broker may do what it was asked after the client has given that up."""
        self.fast = chance.random() < 0.3
        self.harness = Harness(
            load_kit(twin),
            seed=seed,
            nodes=3,
            produce_version=chance.choice([3, 8, 12]),
            fast=self.fast,
            in_flight_max=chance.choice([1, 2, 5, 5]),
            request_timeout_ms=chance.choice([500, 2000]),
            retry_backoff_ms=chance.choice([20, 50, 200]),
            retry_backoff_max_ms=chance.choice([200, 1000]),
            total_bytes_max=chance.choice([2000, 40_000, 1 << 25, 1 << 25]),
            lanes_max=chance.choice([3, 1000, 1000]),
            lane_idle_ms=chance.choice([200, 60_000]),
            request_bytes_max=chance.choice([300, 1 << 20]),
            metadata_age_max_ms=chance.choice([1000, 300_000]),
            io_memory_max=chance.choice([0, 2000, 1 << 20]),
        )
        self.model = self.harness.model
        self.harness.home.meanwhile = lambda: self.harness.advance(chance.choice([0.0, 0.3, 2.0]))
        self.topics = ["a", "b", "c"]
        self.model.create("a", chance.choice([1, 3, 5]))
        self.model.create("b", 1)
        if chance.random() < 0.5:
            self.model.creates["c"] = 2
        self.sizes = {"a": {len(self.model.topics["a"])}, "b": {1}, "c": {2}}
        """How many partitions a topic has had."""
        self.routers: list[Spread | OwnRouter | None] = []
        self.lines: list[Line] = []
        self.sent: list[Sent] = []
        self.refused: list[bytes] = []
        self.numbers = 0
        self.held: dict[ModelBroker, bytes] = {}
        self.arm()
        for _ in range(chance.choice([1, 1, 2, 3])):
            self.open_line()

    # Trouble

    def arm(self) -> None:
        trouble, chance = self.trouble, self.chance
        self.model.refusal = self.refuse
        self.model.unsure = lambda: chance.random() < 0.5
        self.model.delay = lambda: chance.choice([0.01, 0.3, 1.5]) if chance.random() < trouble.delays else 0.0
        for broker in self.model.brokers.values():
            broker.faults = self.connection_faults
            broker.tamper = lambda answer, broker=broker: self.tamper(broker, answer)  # type: ignore[misc]
            broker.damage = self.damage

    def refuse(self, broker: ModelBroker, topic: str, partition: int, stored: bool) -> int:
        if self.chance.random() >= self.trouble.codes:
            return DUPLICATE if stored and self.chance.random() < 0.1 else 0
        codes = self.chance.choice([USUAL_CODES, USUAL_CODES, NUMBER_CODES, ALL_CODES])
        code = self.chance.choice(codes)
        return 0 if code in NUMBER_CODES and (stored or self.late) else code

    def connection_faults(self) -> Faults:
        chance, faults = self.chance, Faults()
        if chance.random() < self.trouble.cuts:
            if chance.random() < 0.5:
                faults.cut_after_sent = chance.choice([chance.randrange(1, 300), chance.randrange(1, 5000)])
            else:
                faults.cut_after_given = chance.choice([chance.randrange(1, 500), chance.randrange(1, 3000)])
        if chance.random() < self.trouble.cuts / 10:
            faults.refuse = True
        if chance.random() < self.trouble.cuts / 10:
            faults.silent_until = self.harness.now + 1
        if chance.random() < self.trouble.pieces:
            faults.take_max = chance.choice([20, 100, 1000])
            faults.give_max = chance.choice([20, 100, 1000])
        return faults

    def tamper(self, broker: ModelBroker, answer: bytes) -> list[tuple[float, bytes]]:
        chance = self.chance
        held = self.held.pop(broker, None)
        if chance.random() >= self.trouble.answers:
            return [(0.0, answer)] if held is None else [(0.0, answer), (0.0, held)]
        match chance.randrange(4):
            case 0:
                return [(0.0, answer), (0.0, answer)]
            case 1:
                self.held[broker] = answer
                return []
            case 2:
                return []
        return [(chance.choice([0.1, 1.0, 3.0]), answer)]

    def damage(self, answer: bytes, telling: int) -> bytes:
        """Turn one bit of what tells which request, topic and partition is answered, or all that comes after that."""
        chance = self.chance
        if chance.random() >= self.trouble.damage:
            return answer
        if chance.random() < 0.2:
            return answer[:4] + b"\xff" * 40
        broken = bytearray(answer)
        broken[chance.randrange(telling)] ^= 1 << chance.randrange(8)
        return bytes(broken)

    def disturb(self) -> None:
        self.disturb_brokers()
        self.disturb_topics()

    def disturb_brokers(self) -> None:
        chance, trouble = self.chance, self.trouble
        brokers = list(self.model.brokers.values())
        if chance.random() < trouble.deaths:
            broker = chance.choice(brokers)
            if broker.is_up and sum(other.is_up for other in brokers) > 1:
                broker.die()
            elif not broker.is_up:
                broker.revive()
                broker.faults = self.connection_faults
        if chance.random() < trouble.throttles:
            chance.choice(brokers).throttle_ms = chance.choice([0, 100, 1000])
        if chance.random() < trouble.pieces:
            for stream in self.harness.network.streams:
                stream.faults.stuck = not stream.faults.stuck and chance.random() < 0.3
        if chance.random() < trouble.identities:
            self.model.identities_code = chance.choice([0, 0, 14, 15, 51, 31])

    def disturb_topics(self) -> None:
        chance, trouble, model = self.chance, self.trouble, self.model
        topic = chance.choice(list(model.topics))
        partitions = len(model.topics[topic])
        if chance.random() < trouble.leaders:
            model.lead(topic, chance.randrange(partitions), chance.choice([1, 2, 3, None]))
        if chance.random() < trouble.growth:
            model.grow(topic, partitions + chance.choice([1, 2]))
            self.sizes[topic].add(len(model.topics[topic]))
        if chance.random() < trouble.sizes:
            model.message_bytes_max = chance.choice([200, 600, 1 << 20])
        if chance.random() < trouble.topics:
            asked = chance.choice(self.topics)
            model.topic_error.pop(asked, None)
            if chance.random() < 0.5:
                model.topic_error[asked] = chance.choice([5, 3, 3, 29])
        if chance.random() < 0.05 and "c" not in model.topics:
            model.create("c", 2)

    def heal(self) -> None:
        model = self.model
        self.trouble = Trouble(random.Random(0))
        for name in vars(self.trouble):
            setattr(self.trouble, name, 0.0)
        model.topic_error.clear()
        model.identities_code = 0
        if "c" not in model.topics:
            model.create("c", 2)
        for broker in model.brokers.values():
            broker.revive()
            broker.throttle_ms = 0
            broker.cut()
        for stream in self.harness.network.streams:
            stream.faults.stuck = False
        for topic, partitions in model.topics.items():
            for number in range(len(partitions)):
                model.lead(topic, number, self.chance.choice([1, 2, 3]))

    # Producers

    def open_line(self) -> None:
        chance = self.chance
        idempotence = chance.random() < 0.8
        grouped = chance.random() < 0.25
        same = {"region": ["us", "eu"]} if grouped or chance.random() < 0.2 else {}
        policy = BatchPolicy(
            bytes_max=chance.choice([0, 300, 2000, 262_144]),
            count_max=chance.choice([1, 3, 10, 1000]),
            delay_ms=chance.choice([0, 5, 50, 400]),
            same_properties=same,
            listed_properties=("city",) if chance.random() < 0.2 else (),
            order="group" if grouped else "lane",
            groups_max=chance.choice([2, 16]),
        )
        topic = chance.choice(self.topics)
        io = BatchIo(chance.choice([0, 0, 30]), chance.choice([500, 1 << 20]))
        self.routers.append(self.router())
        line = self.harness.line(
            topic,
            policy,
            io,
            self.routers[-1],
            idempotence=idempotence,
            acks="all" if idempotence else chance.choice(["all", "leader", "none"]),
            compression=chance.choice(["none", "none", "lz4", "gzip", "snappy", "zstd"])
            if self.model.produce_version >= 7
            else "none",
            delivery_timeout_ms=chance.choice([1000, 5000, 120_000]),
            when_full=chance.choice(["wait", "direct", "fail"]),
            full_timeout_ms=0,
            unknown_topic_ms=chance.choice([0, 1000, 20_000]),
            message_bytes_max=chance.choice([400, 1_000_000]),
            hash=chance.choice(["murmur2", "crc32"]),
        )
        self.lines.append(line)

    def router(self) -> Spread | OwnRouter | None:
        return self.chance.choice(
            [
                None,
                Sticky(self.chance),
                RoundRobin(self.chance),
                Single(None, self.chance),
                PartialRoundRobin(2, self.chance),
                own_router,
            ]
        )

    def close(self, line: Line) -> None:
        line.begin_close()
        if self.chance.random() < 0.5:
            self.harness.advance(self.chance.choice([0.0, 0.1, 5.0]))
        self.harness.loop.call(line.end_close)

    # Messages

    def send(self) -> None:
        index = self.chance.randrange(len(self.lines))
        if self.chance.random() < 0.1:
            self.send_many(index)
        else:
            self.send_one(index)

    def value(self) -> bytes:
        self.numbers += 1
        word = BAD if self.chance.random() < self.trouble.bad else b"v"
        return b"%s.%d" % (word, self.numbers) + b"x" * self.chance.choice([0, 0, 10, 150])

    def properties(self) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        if self.chance.random() < 0.5:
            properties["region"] = self.chance.choice(REGIONS)
        if self.chance.random() < 0.3:
            properties["city"] = self.chance.choice(["oslo", "rome", b"bonn"])
        return properties

    def send_one(self, index: int) -> None:
        chance, line = self.chance, self.lines[index]
        value, properties = self.value(), self.properties()
        fields: dict[str, Any] = {}
        if chance.random() < 0.5:
            fields["key"] = b"k%d" % chance.randrange(6)
        if properties or chance.random() < 0.2:
            fields["properties"] = dict(properties)
        if chance.random() < 0.3:
            fields["event_time"] = chance.randrange(1 << 41)
        if chance.random() < 0.2:
            fields["partition"] = chance.choice([0, 0, 1, 2, 6])
        if chance.random() < 0.1:
            fields["tag"] = properties["penstock.tag"] = chance.choice(["red", "blue"])
        if chance.random() < 0.1:
            fields["keys"] = ["one", "two"]
            properties["penstock.keys"] = "one two"
        calls: list[Any] | None = None
        if chance.random() < 0.3:
            heard = calls = []
            fields["callback"] = lambda receipt: self.called(receipt, heard)
        known = line.lanes.directions.partitions > 0
        wall = self.harness.clock.wall_ms()
        try:
            receipt = line.send(value, **fields)
        except REFUSALS:
            self.refused.append(value)
            return
        time_ms = fields.get("event_time", self.framed_at(line, wall))
        early = "partition" in fields and not known
        row = Row(value, fields.get("key"), pairs_of(properties), time_ms)
        self.note(index, receipt, row, known, early, calls, partition=fields.get("partition"))

    def send_many(self, index: int) -> None:
        chance, line = self.chance, self.lines[index]
        count = chance.choice([0, 1, 5, 30])
        values = [self.value() for _ in range(count)]
        keys = [chance.choice([None, b"", b"k1", b"k2"]) for _ in values] if chance.random() < 0.6 else None
        properties = [self.properties() for _ in values] if chance.random() < 0.5 else None
        known = line.lanes.directions.partitions > 0
        try:
            receipts = line.send_many(values, keys, properties, 77, arrow=chance.random() < 0.5)
        except REFUSALS:
            self.refused += values
            return
        for place, receipt in enumerate(receipts):
            number = self.numbers - count + 1 + place
            key = None if keys is None else keys[place]
            row = Row(values[place], key, pairs_of(properties[place] if properties else {}), 77)
            self.note(index, receipt, row, known, False, None, number)

    def framed_at(self, line: Line, wall: int) -> int:
        """The time of a message that has none of its own; -1 where only the machine's clock knows."""
        waited = line.lanes.options.when_full != "fail"  # time may have passed before it was framed
        return -1 if self.fast or waited else wall

    def note(
        self,
        index: int,
        receipt: Receipt,
        row: Row,
        known: bool,
        early: bool,
        calls: list[Any] | None,
        number: int | None = None,
        partition: int | None = None,
    ) -> None:
        lanes = self.lines[index].lanes
        group = lanes.restriction.shared(dict(row.properties)) if lanes.policy.order == "group" else ()
        place = self.numbers if number is None else number
        self.sent.append(Sent(index, place, lanes.topic, row, receipt, group, early, known, calls, partition))

    def called(self, receipt: Receipt, calls: list[Any]) -> None:
        assert receipt.done()
        calls.append(receipt.exception(0) or receipt.result(0))
        if self.chance.random() < 0.1:
            raise RuntimeError("a user's mistake")

    # The run

    def step(self) -> None:
        chance, harness = self.chance, self.harness
        self.disturb()
        for _ in range(chance.choice([0, 1, 1, 2, 10])):
            self.send()
        match chance.randrange(8):
            case 0:
                harness.advance(chance.choice([0.01, 0.2, 1.0, 4.0]))
            case 1:
                harness.settle()
            case 2 | 3:
                self.model.pump()
                harness.turn()
            case 4:
                line = chance.choice(self.lines)
                line.seal()
            case 5:
                line = chance.choice(self.lines)
                harness.sender.flushing += 1
                line.outlet.cluster.flush(harness.now)
                line.seal()
                harness.advance(0.1)
                harness.sender.flushing -= 1
            case 6:
                harness.advance(0.03)
        if chance.random() < self.trouble.closes:
            self.close(chance.choice(self.lines))
            if chance.random() < 0.7:
                self.open_line()

    def run(self) -> None:
        for _ in range(self.steps):
            self.step()
        self.heal()
        if self.chance.random() < 0.5:
            self.send()
        if self.chance.random() < 0.5:
            for line in self.lines:
                line.seal()
        self.harness.run(self.is_over, 400.0)
        self.harness.settle()
        self.check()
        for line in self.lines:
            line.end_close()
        self.harness.settle()
        self.harness.check_idle()
        assert self.harness.accumulator.lanes == 0

    def is_over(self) -> bool:
        """Whether every message has its outcome, and nothing is under way any more, not even for those that expired."""
        flying = [lane for line in self.lines for lane in line.lanes.intake.lanes.values() if lane.delivery is not None]
        return all(lane.delivery.is_idle for lane in flying) and all(sent.receipt.done() for sent in self.sent)

    # What must hold

    def check(self) -> None:
        self.harness.check_idle()
        found: dict[bytes, list[tuple[str, int, int]]] = defaultdict(list)
        stored: dict[tuple[str, int, int], Row] = {}
        for topic, partitions in self.model.topics.items():
            for number, partition in enumerate(partitions):
                for offset, row in enumerate(partition.rows):
                    stored[topic, number, offset] = row
                    found[row.value or b""].append((topic, number, offset))
        outcomes = [sent.receipt.exception(0) or sent.receipt.result(0) for sent in self.sent]
        for sent, outcome in zip(self.sent, outcomes, strict=True):
            self.check_one(sent, outcome, found[sent.row.value or b""], stored)
        for value in self.refused:
            assert not found[value], f"{value!r} was refused by send, and stored"
        self.check_order(outcomes, found)
        self.check_spread(found)

    def check_one(
        self, sent: Sent, outcome: MessageId | Exception, places: list[tuple[str, int, int]], stored: dict[Any, Row]
    ) -> None:
        options = self.lines[sent.line].lanes.options
        told = f"{sent.row.value!r} of line {sent.line}: {outcome!r}, stored at {places}"
        if options.idempotence:
            assert len(places) <= 1, f"stored twice: {told}"
        for place in places:
            assert place[0] == sent.topic, f"in another topic: {told}"
            row, expected = stored[place], sent.row
            if expected.time_ms < 0:
                row = row._replace(time_ms=-1)
            assert row == expected, f"{row} instead of {expected}"
            assert place[1] in self.places_of(sent), f"not where it belongs: {told}"
        if isinstance(outcome, MessageId):
            if options.acks != "none" and outcome.position is not None:
                assert (outcome.topic, outcome.partition, outcome.position) in places, f"not there: {told}"
            elif options.acks != "none":
                assert places, f"not stored: {told}"
        else:
            assert isinstance(outcome, PenstockError), told
            if outcome.persisted is Persisted.NO:
                assert not places, f"stored all the same: {told}"
            elif outcome.persisted is Persisted.YES:
                assert places, f"not stored: {told}"
        if sent.calls is not None:
            assert [str(heard) for heard in sent.calls] == [str(outcome)], f"the callback heard {sent.calls!r}: {told}"
        assert not sent.receipt.parcel.listeners

    def places_of(self, sent: Sent) -> set[int]:
        """The partitions that a message may be found in, as many as its topic has had."""
        if sent.partition is not None:
            return {sent.partition}
        sizes, router = self.sizes[sent.topic], self.routers[sent.line]
        if router is own_router:
            return {own_router(Routed(sent.topic, sent.row.value, None, {}, size)) for size in sizes}
        if sent.row.key is None:
            return set(range(max(sizes)))
        hash_key = HASHES[self.lines[sent.line].lanes.options.hash]
        return {hash_key(sent.row.key, size) for size in sizes}

    def check_spread(self, found: dict[bytes, list[tuple[str, int, int]]]) -> None:
        """Messages that neither a key nor a number sends anywhere are in no more partitions than their router uses."""
        used: dict[int, set[int]] = defaultdict(set)
        for sent in self.sent:
            if sent.partition is None and sent.row.key is None:
                used[sent.line].update(partition for _, partition, _ in found[sent.row.value or b""])
        for line, partitions in used.items():
            most = {Single: 1, PartialRoundRobin: 2}.get(type(self.routers[line]), max(self.sizes["a"]) + 100)
            assert len(partitions) <= most, f"line {line} with {self.routers[line]!r} used {partitions}"

    def check_order(
        self, outcomes: Sequence[MessageId | Exception], found: dict[bytes, list[tuple[str, int, int]]]
    ) -> None:
        """Messages are stored in the order of sending, within their lane and, where that was asked, their group."""
        lanes: dict[Any, list[tuple[int, Sent]]] = defaultdict(list)
        for sent, outcome in zip(self.sent, outcomes, strict=True):
            if not self.lines[sent.line].lanes.options.idempotence:
                continue
            if isinstance(outcome, MessageId) or not self.late:
                for _, partition, offset in found[sent.row.value or b""]:
                    lanes[sent.line, partition, sent.group].append((offset, sent))
        for lane, messages in lanes.items():
            messages.sort(key=lambda pair: pair[0])
            for early in (True, False):
                numbers = [sent.number for _, sent in messages if sent.known or sent.early is early]
                assert numbers == sorted(numbers), f"out of order in {lane}: {numbers}"


def own_router(message: Routed) -> int:
    """A user's own router, which knows no place for some messages."""
    if (message.value or b"").endswith(b"7"):
        raise ValueError("no number ends so")
    return sum(message.value or b"") % message.partitions


def pairs_of(properties: Mapping[str, Any]) -> tuple[tuple[str, bytes | None], ...]:
    """Properties as a broker has them."""
    return tuple((name, told.encode() if isinstance(told, str) else told) for name, told in properties.items())


def check_runs(start: int, stop: int, twin: str = OWN) -> None:
    """Run these seeds; the first that fails says so."""
    for seed in range(start, stop):
        try:
            Chaos(seed, twin).run()
        except Exception as error:
            raise AssertionError(f"Chaos({seed}, {twin!r}).run(): {error!r}") from error
