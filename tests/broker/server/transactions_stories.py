"""What clients ask about transactions, request by request, and what a real Kafka answered: 4.3.1, told as codes.

A story is run against any broker. Producer ids are told as the order in which they came up; waiting for a coordinator
that is not there yet, or that is still busy with what came before, is not part of a story. Where this broker differs on
purpose, a story does not ask: it answers EndTxn, and InitProducerId of an open transaction, when everything is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from penstock.wire.entry import Stamp
from tests.broker.server.transactions_raw import Raw

LIMIT_S = 30.0
PAUSE_S = 0.02
NOT_YET = {14, 15, 16, 51}
OVER = {"Empty", "CompleteCommit", "CompleteAbort"}


class Teller:
    """One client that notes what it was answered."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw
        self.notes: list[tuple[str, Any]] = []
        self.mark = uuid4().hex[:8]
        self._producers: list[int] = []

    def name(self, name: str) -> str:
        return f"{name}-{self.mark}"

    def note(self, label: str, answer: Any) -> None:
        if isinstance(answer, dict):
            told: Any = {f"{key[0].split('-')[0]}-{key[1]}": int(code) for key, code in answer.items()}
        elif isinstance(answer, tuple):
            told = tuple(int(part) for part in answer)
        else:
            told = int(answer)
        self.notes.append((label, told))

    def identity(self, label: str, answer: tuple[int, int, int]) -> tuple[int, int]:
        """Note an identity, or why there is none; give it as it is."""
        error, producer, epoch = (int(part) for part in answer)
        if producer >= 0 and producer not in self._producers:
            self._producers.append(producer)
        self.notes.append((label, (error, self._producers.index(producer) if producer >= 0 else -1, epoch)))
        return producer, epoch

    def patiently(self, ask: Callable[[], Any], code: Callable[[Any], int] = lambda answer: int(answer[0])) -> Any:
        """Ask until the coordinator is there, and done with what came before."""
        deadline = time.monotonic() + LIMIT_S
        while code(answer := ask()) in NOT_YET and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
        return answer

    def find(self, name: str, kind: int = 1) -> None:
        self.patiently(
            lambda: self.raw.ask("FindCoordinator", 3, key=name, key_type=kind), lambda it: int(it.error_code)
        )

    def offsets(self, label: str, *arguments: Any, **member: Any) -> None:
        """Commit offsets, and note it."""

        def code(answer: dict[tuple[str, int], int]) -> int:
            return max((int(told) for told in answer.values() if int(told) in NOT_YET), default=0)

        self.note(label, self.patiently(lambda: self.raw.commit_offsets(*arguments, **member), code))

    def begin(self, tid: str, version: int = 4, timeout_ms: int = 60_000) -> tuple[int, int]:
        """An identity, whatever it takes; not noted."""
        self.find(tid)
        error, producer, epoch = self.patiently(lambda: self.raw.init(tid, version, timeout_ms))
        assert int(error) == 0
        if producer not in self._producers:
            self._producers.append(producer)
        return producer, epoch

    def topic(self, name: str, partitions: int = 2) -> str:
        made = self.name(name)
        assert int(self.raw.create(made, partitions)) == 0
        for partition in range(partitions):
            self.patiently(lambda: self.raw.produce(made, partition, Stamp(), None), lambda it: 14 if it[0] else 0)  # noqa: B023
        return made

    def over(self, tid: str) -> str:
        """Wait until nothing is under way; the state then."""
        deadline = time.monotonic() + LIMIT_S
        while (state := self.described(tid).transaction_state) not in OVER:
            assert time.monotonic() < deadline, state
            time.sleep(PAUSE_S)
        return str(state)

    def described(self, tid: str) -> Any:
        return self.raw.ask("DescribeTransactions", 0, transactional_ids=(tid,)).transaction_states[0]


def identities(tell: Teller) -> None:
    raw, tid = tell.raw, tell.name("t")
    tell.find(tid)
    tell.identity("without an id", tell.patiently(lambda: raw.init(None)))
    tell.identity("again, another", raw.init(None, 4, 60_000, (5, 3)))
    tell.identity("empty id", raw.init(""))
    tell.identity("no time", raw.init(tid, 4, 0))
    tell.identity("too long a time", raw.init(tid, 4, 900_001))
    tell.identity("half an identity", raw.init(tid, 4, 60_000, (5, -1)))
    tell.identity("the other half", raw.init(tid, 4, 60_000, (-1, 5)))
    first = tell.identity("first", tell.patiently(lambda: raw.init(tid, 4, 900_000)))
    second = tell.identity("taken by another", raw.init(tid))
    tell.identity("renewed by who lost it", raw.init(tid, 4, 60_000, first))
    third = tell.identity("renewed", raw.init(tid, 4, 60_000, second))
    tell.identity("renewed again with the same", raw.init(tid, 4, 60_000, second))
    tell.identity("by somebody else", raw.init(tid, 4, 60_000, (third[0] + 1000, third[1])))
    tell.identity("with an epoch to come", raw.init(tid, 4, 60_000, (third[0], third[1] + 5)))
    tell.identity("before version 4", raw.init(tid, 3, 60_000, first))
    tell.identity("an old version", raw.init(tid, 1))
    tell.identity("whom nobody knows", tell.patiently(lambda: raw.init(tell.name("new"), 4, 60_000, first)))


IDENTITIES = [
    ("without an id", (0, 0, 0)),
    ("again, another", (0, 1, 0)),
    ("empty id", (42, -1, -1)),
    ("no time", (50, -1, -1)),
    ("too long a time", (50, -1, -1)),
    ("half an identity", (42, -1, -1)),
    ("the other half", (42, -1, -1)),
    ("first", (0, 2, 0)),
    ("taken by another", (0, 2, 1)),
    ("renewed by who lost it", (90, -1, -1)),
    ("renewed", (0, 2, 2)),
    ("renewed again with the same", (0, 2, 2)),
    ("by somebody else", (90, -1, -1)),
    ("with an epoch to come", (90, -1, -1)),
    ("before version 4", (47, -1, -1)),
    ("an old version", (0, 2, 3)),
    ("whom nobody knows", (0, 3, 0)),
]


def numbering(tell: Teller) -> None:
    """A producer that numbers its messages, outside of transactions."""
    raw, topic = tell.raw, tell.topic("topic", 3)
    producer, _ = tell.identity("identity", tell.patiently(lambda: raw.init(None)))

    def send(label: str, sequence: int, count: int = 1, epoch: int = 0, partition: int = 0) -> None:
        stamp = Stamp(producer, epoch, sequence)
        tell.note(label, raw.produce(topic, partition, stamp, None, values=(b"x",) * count))

    send("without a number", -1)
    send("the first", 0, 2)
    send("the same again", 0, 2)
    send("the same, with fewer messages", 0)
    send("the same, with more messages", 0, 3)
    send("a part of it", 1)
    send("a gap", 3)
    send("the next", 2)
    for sequence in range(3, 7):
        send(f"number {sequence}", sequence)
    send("the fifth from the end", 2)
    send("the sixth from the end", 0, 2)
    send("a higher epoch, not from zero", 7, epoch=1)
    send("a higher epoch", 0, epoch=1)
    send("the lower epoch", 7)
    send("the lower epoch, sent before", 6)
    send("unknown in this partition", 5, partition=1)
    send("and before that", 4, partition=1)
    send("almost the largest number", (1 << 31) - 2, partition=2)
    send("across the largest", (1 << 31) - 1, 3, partition=2)
    send("across the largest again", (1 << 31) - 1, 3, partition=2)
    send("behind it", 2, partition=2)


NUMBERING = [
    ("identity", (0, 0, 0)),
    ("without a number", (87, -1)),
    ("the first", (0, 1)),
    ("the same again", (0, 1)),
    ("the same, with fewer messages", (45, -1)),
    ("the same, with more messages", (45, -1)),
    ("a part of it", (45, -1)),
    ("a gap", (45, -1)),
    ("the next", (0, 3)),
    *((f"number {sequence}", (0, sequence + 1)) for sequence in range(3, 7)),
    ("the fifth from the end", (0, 3)),
    ("the sixth from the end", (45, -1)),
    ("a higher epoch, not from zero", (45, -1)),
    ("a higher epoch", (0, 8)),
    ("the lower epoch", (47, -1)),
    ("the lower epoch, sent before", (47, -1)),
    ("unknown in this partition", (0, 1)),
    ("and before that", (45, -1)),
    ("almost the largest number", (0, 1)),
    ("across the largest", (0, 2)),
    ("across the largest again", (0, 2)),
    ("behind it", (0, 5)),
]


def enlisting(tell: Teller) -> None:
    """A client that enlists, and whose epoch stays."""
    raw, tid, topic, other = tell.raw, tell.name("t"), tell.topic("topic"), tell.topic("other")
    producer, epoch = tell.begin(tid)
    mine = (tid, producer, epoch)
    tell.note("commit of nothing", raw.end(*mine, True))
    tell.note("abort of nothing", raw.end(*mine, False))
    tell.note("end of an unknown id", raw.end("unknown", producer, epoch, True))
    tell.note("end of an empty id", raw.end("", producer, epoch, True))
    tell.note("end by another producer", raw.end(tid, producer + 1000, epoch, True))
    tell.note("end with another epoch", raw.end(tid, producer, epoch + 1, True))
    tell.note("the same before version 2", raw.end(tid, producer, epoch + 1, True, 1))
    tell.note("partitions that are not", raw.add(*mine, ("nowhere", 0), (topic, 0), (topic, 9)))
    tell.note("partitions of another producer", raw.add(tid, producer + 1000, epoch, (topic, 0)))
    tell.note("partitions with another epoch", raw.add(tid, producer, epoch + 1, (topic, 0)))
    tell.note("the same before version 2", raw.add(tid, producer, epoch + 1, (topic, 0), version=1))
    tell.note("partitions of an unknown id", raw.add("unknown", producer, epoch, (topic, 0)))
    tell.note("partitions of an empty id", raw.add("", producer, epoch, (topic, 0)))
    tell.note("not enlisted", raw.produce(topic, 0, Stamp(producer, epoch, 0, True), tid))
    tell.note("not enlisted, before version 11", raw.produce(topic, 0, Stamp(producer, epoch, 0, True), tid, 10))
    tell.note("partitions", raw.add(*mine, (topic, 0), (topic, 1)))
    tell.note("partitions again", raw.add(*mine, (topic, 0)))
    tell.note("an entry", raw.produce(topic, 0, Stamp(producer, epoch, 0, True), tid))
    tell.note("the same again", raw.produce(topic, 0, Stamp(producer, epoch, 0, True), tid))
    tell.note("the first of a partition, any number", raw.produce(topic, 1, Stamp(producer, epoch, 5, True), tid))
    tell.note("outside of the open transaction", raw.produce(topic, 0, Stamp(producer, epoch, 1, False), None))
    tell.note("a gap", raw.produce(topic, 0, Stamp(producer, epoch, 2, True), tid))
    tell.note("of an older epoch", raw.produce(topic, 0, Stamp(producer, epoch - 1, 1, True), tid, 11))
    tell.note("of another producer", raw.produce(topic, 0, Stamp(producer + 1000, epoch, 0, True), tid))
    tell.note("of another topic", raw.produce(other, 0, Stamp(producer, epoch, 0, True), tid))
    tell.note("without the id", raw.produce(topic, 0, Stamp(producer, epoch, 1, True), None))
    tell.note("commit", raw.end(*mine, True))
    tell.notes.append(("state", tell.over(tid)))
    tell.note("commit again", raw.end(*mine, True))
    tell.note("abort after commit", raw.end(*mine, False))
    tell.note("on and on", raw.add(*mine, (topic, 0)))
    tell.note("the next number", raw.produce(topic, 0, Stamp(producer, epoch, 1, True), tid))
    tell.note("abort", raw.end(*mine, False))
    tell.notes.append(("state", tell.over(tid)))
    tell.note("abort again", raw.end(*mine, False))
    tell.note("commit after abort", raw.end(*mine, True))


ENLISTING = [
    ("commit of nothing", (48, -1, -1)),
    ("abort of nothing", (48, -1, -1)),
    ("end of an unknown id", (49, -1, -1)),
    ("end of an empty id", (42, -1, -1)),
    ("end by another producer", (49, -1, -1)),
    ("end with another epoch", (90, -1, -1)),
    ("the same before version 2", (47, -1, -1)),
    ("partitions that are not", {"nowhere-0": 3, "topic-0": 55, "topic-9": 3}),
    ("partitions of another producer", {"topic-0": 49}),
    ("partitions with another epoch", {"topic-0": 90}),
    ("the same before version 2", {"topic-0": 47}),
    ("partitions of an unknown id", {"topic-0": 49}),
    ("partitions of an empty id", {"topic-0": 42}),
    ("not enlisted", (120, -1)),
    ("not enlisted, before version 11", (48, -1)),
    ("partitions", {"topic-0": 0, "topic-1": 0}),
    ("partitions again", {"topic-0": 0}),
    ("an entry", (0, 1)),
    ("the same again", (0, 1)),
    ("the first of a partition, any number", (0, 1)),
    ("outside of the open transaction", (48, -1)),
    ("a gap", (45, -1)),
    ("of an older epoch", (47, -1)),
    ("of another producer", (49, -1)),
    ("of another topic", (120, -1)),
    ("without the id", (53, -1)),
    ("commit", (0, -1, -1)),
    ("state", "CompleteCommit"),
    ("commit again", (0, -1, -1)),
    ("abort after commit", (48, -1, -1)),
    ("on and on", {"topic-0": 0}),
    ("the next number", (0, 3)),
    ("abort", (0, -1, -1)),
    ("state", "CompleteAbort"),
    ("abort again", (0, -1, -1)),
    ("commit after abort", (48, -1, -1)),
]


def joining(tell: Teller) -> None:
    """A client that counts on joining, and on another epoch each time."""
    raw, tid, topic = tell.raw, tell.name("t"), tell.topic("topic")
    producer, epoch = tell.begin(tid, 5)
    tell.note("commit of nothing", raw.end(tid, producer, epoch, True, 5))
    end = tell.identity("abort of nothing", raw.end(tid, producer, epoch, False, 5))
    tell.over(tid)
    tell.identity("the same again", raw.end(tid, producer, epoch, False, 5))
    epoch = end[1]
    mine = Stamp(producer, epoch, 0, True)
    tell.note("an entry", tell.patiently(lambda: raw.produce(topic, 0, mine, tid, 12)))
    tell.note("the same again", raw.produce(topic, 0, mine, tid, 12))
    tell.note("the first of a partition, not zero", raw.produce(topic, 1, mine._replace(sequence=5), tid, 12))
    tell.note("outside of the open transaction", raw.produce(topic, 0, Stamp(producer, epoch, 1), tid, 12))
    tell.note("of an older epoch", raw.produce(topic, 0, Stamp(producer, epoch - 1, 1, True), tid, 12))
    tell.note("of an epoch to come", raw.produce(topic, 0, Stamp(producer, epoch + 1, 0, True), tid, 12))
    tell.note("of another producer", raw.produce(topic, 0, Stamp(producer + 1000, epoch, 0, True), tid, 12))
    tell.identity("commit", raw.end(tid, producer, epoch, True, 5))
    tell.notes.append(("state", tell.over(tid)))
    tell.identity("commit again", raw.end(tid, producer, epoch, True, 5))
    tell.note("abort of the same", raw.end(tid, producer, epoch, False, 5))
    tell.note("an entry of the old epoch", raw.produce(topic, 0, mine._replace(sequence=1), tid, 12))
    tell.note("an old entry again", raw.produce(topic, 0, mine, tid, 12))
    new = Stamp(producer, epoch + 1, 1, True)
    tell.note("a new epoch, not zero", raw.produce(topic, 0, new, tid, 12))
    tell.note("a new epoch", raw.produce(topic, 0, new._replace(sequence=0), tid, 12))
    tell.note("commit of the one before", raw.end(tid, producer, epoch, True, 5))
    tell.note("an end that keeps the epoch", raw.end(tid, producer, epoch + 1, False, 4))
    tell.notes.append(("state", tell.over(tid)))
    tell.identity("abort of nothing", raw.end(tid, producer, epoch + 1, False, 5))
    tell.over(tid)
    tell.note("outside of any transaction", raw.produce(topic, 1, Stamp(producer, epoch + 2, 0), None, 12))


JOINING = [
    ("commit of nothing", (48, -1, -1)),
    ("abort of nothing", (0, 0, 1)),
    ("the same again", (0, 0, 1)),
    ("an entry", (0, 1)),
    ("the same again", (0, 1)),
    ("the first of a partition, not zero", (45, -1)),
    ("outside of the open transaction", (48, -1)),
    ("of an older epoch", (47, -1)),
    ("of an epoch to come", (47, -1)),
    ("of another producer", (49, -1)),
    ("commit", (0, 0, 2)),
    ("state", "CompleteCommit"),
    ("commit again", (0, 0, 2)),
    ("abort of the same", (48, -1, -1)),
    ("an entry of the old epoch", (47, -1)),
    ("an old entry again", (47, -1)),
    ("a new epoch, not zero", (45, -1)),
    ("a new epoch", (0, 3)),
    ("commit of the one before", (90, -1, -1)),
    ("an end that keeps the epoch", (0, -1, -1)),
    ("state", "CompleteAbort"),
    ("abort of nothing", (0, 0, 3)),
    ("outside of any transaction", (0, 2)),
]


def offsets(tell: Teller) -> None:
    """Offsets within transactions, of both kinds of clients."""
    raw, tid, topic, group = tell.raw, tell.name("t"), tell.topic("topic"), tell.name("group")
    producer, epoch = tell.begin(tid)
    tell.find(group, 0)
    mine, where = (tid, producer, epoch), (topic, 0)
    tell.offsets("not enlisted", *mine, group, {where: 5})
    tell.offsets("the same before version 4", *mine, group, {where: 5}, 3)
    tell.note("group", raw.add_group(*mine, group))
    tell.note("group again", raw.add_group(*mine, group))
    tell.note("group with another epoch", raw.add_group(tid, producer, epoch + 1, group))
    tell.note("group of an unknown id", raw.add_group("unknown", producer, epoch, group))
    tell.offsets("offsets", *mine, group, {where: 5, ("nowhere", 0): 1, (topic, 9): 3})
    tell.note("committed", tell.patiently(lambda: raw.committed(group, *where)))
    tell.note("committed and stable", tell.patiently(lambda: raw.committed(group, *where, stable=True)))
    tell.offsets("of an older epoch", tid, producer, epoch - 1, group, {where: 5})
    tell.offsets("of another producer", tid, producer + 1000, epoch, group, {where: 5})
    tell.offsets("of another group", *mine, tell.name("other"), {where: 5})
    tell.offsets("of no group", *mine, "", {where: 5})
    tell.offsets("by no member", *mine, group, {where: 5}, generation_id=5, member_id="nobody")
    tell.note("abort", raw.end(*mine, False))
    tell.over(tid)
    tell.note("committed and stable", tell.patiently(lambda: raw.committed(group, *where, stable=True)))
    tell.note("group", raw.add_group(*mine, group))
    tell.offsets("offsets", *mine, group, {where: 7})
    tell.note("commit", raw.end(*mine, True))
    tell.over(tid)
    settled = tell.patiently(lambda: raw.committed(group, *where, stable=True), lambda it: 14 if it[0] == 88 else 0)
    tell.note("committed and stable", settled)
    tell.offsets("offsets that join", *mine, group, {where: 9}, 5)
    tell.note("committed", tell.patiently(lambda: raw.committed(group, *where)))
    tell.identity("commit", raw.end(*mine, True, 5))
    tell.over(tid)
    settled = tell.patiently(lambda: raw.committed(group, *where, stable=True), lambda it: 14 if it[0] == 88 else 0)
    tell.note("committed and stable", settled)
    tell.offsets("offsets of the old epoch", *mine, group, {where: 11}, 5)


OFFSETS = [
    ("not enlisted", {"topic-0": 120}),
    ("the same before version 4", {"topic-0": 48}),
    ("group", 0),
    ("group again", 0),
    ("group with another epoch", 90),
    ("group of an unknown id", 49),
    ("offsets", {"topic-0": 0, "nowhere-0": 3, "topic-9": 3}),
    ("committed", (0, -1)),
    ("committed and stable", (88, -1)),
    ("of an older epoch", {"topic-0": 47}),
    ("of another producer", {"topic-0": 49}),
    ("of another group", {"topic-0": 120}),
    ("of no group", {"topic-0": 24}),
    ("by no member", {"topic-0": 25}),
    ("abort", (0, -1, -1)),
    ("committed and stable", (0, -1)),
    ("group", 0),
    ("offsets", {"topic-0": 0}),
    ("commit", (0, -1, -1)),
    ("committed and stable", (0, 7)),
    ("offsets that join", {"topic-0": 0}),
    ("committed", (0, 7)),
    ("commit", (0, 0, 1)),
    ("committed and stable", (0, 9)),
    ("offsets of the old epoch", {"topic-0": 47}),
]


def taking(tell: Teller) -> None:
    """Another instance takes the id while a transaction is open."""
    raw, topic = tell.raw, tell.topic("topic")
    for version, produce_version in ((4, 11), (5, 12)):
        tid = tell.name(f"t{version}")
        producer, epoch = tell.begin(tid, version)
        if version == 4:
            raw.add(tid, producer, epoch, (topic, 0))
        tell.note("an entry", raw.produce(topic, 0, Stamp(producer, epoch, 0, True), tid, produce_version))
        taken = tell.identity("taken", tell.patiently(lambda: raw.init(tid, version)))  # noqa: B023
        old = Stamp(producer, epoch, 1, True)
        tell.note("an entry of who lost it", raw.produce(topic, 0, old, tid, produce_version))
        tell.note("its end", raw.end(tid, producer, epoch, True, version))
        tell.identity("renewed by who lost it", raw.init(tid, version, 60_000, (producer, epoch)))
        if version == 4:
            raw.add(tid, *taken, (topic, 0))
        tell.note("an entry of the new one", raw.produce(topic, 0, Stamp(*taken, 0, True), tid, produce_version))
        renewed = tell.identity(
            "renewed by the same",
            tell.patiently(lambda: raw.init(tid, version, 60_000, taken)),  # noqa: B023
        )
        tell.identity("renewed again", raw.init(tid, version, 60_000, taken))
        tell.note("abort of what is over", raw.end(tid, *renewed, False, 4))


TAKING_ONE = [
    ("taken", (0, 0, 2)),
    ("an entry of who lost it", (47, -1)),
    ("its end", (90, -1, -1)),
    ("renewed by who lost it", (90, -1, -1)),
]
TAKING = [
    ("an entry", (0, 1)),
    *TAKING_ONE,
    ("an entry of the new one", (0, 3)),
    ("renewed by the same", (0, 0, 3)),
    ("renewed again", (0, 0, 3)),
    ("abort of what is over", (48, -1, -1)),
    ("an entry", (0, 5)),
    *((label, (told[0], 1, told[2]) if told[0] == 0 else told) for label, told in TAKING_ONE),
    ("an entry of the new one", (0, 7)),
    ("renewed by the same", (0, 1, 3)),
    ("renewed again", (0, 1, 3)),
    ("abort of what is over", (48, -1, -1)),
]


def timing(tell: Teller) -> None:
    """A transaction that takes longer than its client said."""
    raw, topic = tell.raw, tell.topic("topic")
    for version, produce_version in ((4, 11), (5, 12)):
        tid = tell.name(f"t{version}")
        producer, epoch = tell.begin(tid, version, 500)
        if version == 4:
            raw.add(tid, producer, epoch, (topic, 0))
        tell.note("an entry", raw.produce(topic, 0, Stamp(producer, epoch, 0, True), tid, produce_version))
        tell.notes.append(("state", tell.over(tid)))
        late = Stamp(producer, epoch, 1, True)
        tell.note("an entry that is late", raw.produce(topic, 0, late, tid, produce_version))
        tell.note("a commit that is late", raw.end(tid, producer, epoch, True, version))
        tell.note("an abort that is late", raw.end(tid, producer, epoch, False, version)[:1])
        tell.identity("renewed", raw.init(tid, version, 500, (producer, epoch)))


TIMING = [
    ("an entry", (0, 1)),
    ("state", "CompleteAbort"),
    ("an entry that is late", (47, -1)),
    ("a commit that is late", (90, -1, -1)),
    ("an abort that is late", (90,)),
    ("renewed", (0, 0, 1)),
    ("an entry", (0, 3)),
    ("state", "CompleteAbort"),
    ("an entry that is late", (47, -1)),
    ("a commit that is late", (48, -1, -1)),
    ("an abort that is late", (0,)),
    ("renewed", (0, 1, 1)),
]


def tools(tell: Teller) -> None:
    """What administration tools ask."""
    raw, topic = tell.raw, tell.topic("topic")
    open_tid, done_tid = tell.name("open"), tell.name("done")
    producer, epoch = tell.begin(open_tid, 5)
    raw.produce(topic, 0, Stamp(producer, epoch, 0, True), open_tid, 12)
    other, other_epoch = tell.begin(done_tid, 5)
    raw.produce(topic, 1, Stamp(other, other_epoch, 0, True), done_tid, 12)
    raw.end(done_tid, other, other_epoch, True, 5)
    tell.over(done_tid)

    for name in (open_tid, done_tid, "unknown", ""):
        told = tell.described(name)
        topics = [(it.topic.split("-")[0], tuple(it.partitions)) for it in told.topics]
        tell.notes.append(
            (
                f"describe {name.split('-')[0]}",
                (int(told.error_code), told.transaction_state, told.producer_epoch, topics),
            )
        )

    def listed(label: str, version: int = 2, **filters: Any) -> None:
        asked = {
            "state_filters": (),
            "producer_id_filters": (),
            "duration_filter": -1,
            "transactional_id_pattern": None,
        }
        told = raw.ask("ListTransactions", version, **(asked | filters))
        rows = [(it.transactional_id.split("-")[0], it.transaction_state) for it in told.transaction_states]
        tell.notes.append((label, (int(told.error_code), tuple(told.unknown_state_filters), sorted(rows))))

    mine = f".*-{tell.mark}"
    listed("list mine", transactional_id_pattern=mine)
    listed("list by producer", 0, producer_id_filters=(other,))
    listed("list open", transactional_id_pattern=mine, state_filters=("Ongoing",))
    listed("list unknown states", transactional_id_pattern=mine, state_filters=("Ongoing", "Whatever"))
    listed("list only unknown states", state_filters=("ongoing",))
    listed("list long ones", transactional_id_pattern=mine, duration_filter=10_000_000)
    listed("list a part of a name", transactional_id_pattern="open")
    listed("list a bad pattern", transactional_id_pattern="[bad")
    asked = [{"name": topic, "partition_indexes": (0, 1, 7)}, {"name": "nowhere", "partition_indexes": (0,)}]
    for it in raw.ask("DescribeProducers", 0, topics=asked).topics:
        for part in it.partitions:
            rows = [
                (row.producer_epoch, row.last_sequence, row.coordinator_epoch, row.current_txn_start_offset)
                for row in part.active_producers
            ]
            tell.notes.append(
                (f"producers of {it.name.split('-')[0]}", (part.partition_index, int(part.error_code), rows))
            )
    transaction = {"transactional_id": open_tid, "producer_id": producer, "producer_epoch": epoch}
    several = [
        transaction | {"verify_only": True, "topics": [{"name": topic, "partitions": (0, 1)}]},
        transaction | {"verify_only": False, "topics": [{"name": topic, "partitions": (0, 1)}]},
        transaction | {"transactional_id": "unknown", "topics": [{"name": topic, "partitions": (0,)}]},
        transaction | {"topics": [{"name": topic, "partitions": (0, 9)}]},
    ]
    for one in several:
        told = raw.ask("AddPartitionsToTxn", 4, transactions=[one]).results_by_transaction[0]
        codes = {
            (row.name, at.partition_index): at.partition_error_code
            for row in told.topic_results
            for at in row.results_by_partition
        }
        tell.note("batched", codes)


TOOLS = [
    ("describe open", (0, "Ongoing", 0, [("topic", (0,))])),
    ("describe done", (0, "CompleteCommit", 1, [])),
    ("describe unknown", (105, "", 0, [])),
    ("describe ", (42, "", 0, [])),
    ("list mine", (0, (), [("done", "CompleteCommit"), ("open", "Ongoing")])),
    ("list by producer", (0, (), [("done", "CompleteCommit")])),
    ("list open", (0, (), [("open", "Ongoing")])),
    ("list unknown states", (0, ("Whatever",), [("open", "Ongoing")])),
    ("list only unknown states", (0, ("ongoing",), [])),
    ("list long ones", (0, (), [])),
    ("list a part of a name", (0, (), [])),
    ("list a bad pattern", (128, (), [])),
    ("producers of topic", (0, 0, [(0, 0, -1, 1)])),
    ("producers of topic", (1, 0, [(1, -1, 0, -1)])),
    ("producers of topic", (7, 3, [])),
    ("producers of nowhere", (0, 3, [])),
    ("batched", {"topic-0": 0, "topic-1": 120}),
    ("batched", {"topic-0": 0, "topic-1": 0}),
    ("batched", {"topic-0": 49}),
    ("batched", {"topic-0": 55, "topic-9": 3}),
]

STORIES: dict[str, tuple[Callable[[Teller], None], list[tuple[str, Any]]]] = {
    "identities": (identities, IDENTITIES),
    "numbering": (numbering, NUMBERING),
    "enlisting": (enlisting, ENLISTING),
    "joining": (joining, JOINING),
    "offsets": (offsets, OFFSETS),
    "taking": (taking, TAKING),
    "timing": (timing, TIMING),
    "tools": (tools, TOOLS),
}
