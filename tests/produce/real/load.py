"""Messages sent by several threads while something goes wrong, and the judgement on what became of each.

A message tells who sent it, to which partition and as which: its value says so, and its key, properties and time follow
from it. So whatever a consumer finds can be judged without a record of what was sent.

Times are of these hours: a broker forgets a producer whose last message is, by its own time, older than a day
(`producer.id.expiration.ms`), at its next start at the latest, and then stores again what is sent again.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import penstock
from penstock.errors import NoRoomError, PenstockError, Persisted
from penstock.message import MessageId
from tests.produce.real.reading import Headers, Read

TIME_MS = time.time_ns() // 1_000_000 - 3_600_000
MANY = 25
LIMIT_S = 120.0


class Name(NamedTuple):
    """A message: its sender, its partition, and its number among those of this sender to this partition."""

    sender: int
    partition: int
    number: int

    @property
    def value(self) -> bytes:
        return b"%d %d %d " % self + b"." * (self.number % 150)

    @property
    def key(self) -> bytes | None:
        return (None, b"", b"key %d" % self.number)[self.number % 3]

    @property
    def properties(self) -> dict[str, str | None] | None:
        return (None, {"n": str(self.number), "none": None}, {})[self.number % 3]

    @property
    def time_ms(self) -> int:
        return TIME_MS + self.number * 7 - self.number % 5 * 20

    @property
    def content(self) -> tuple[bytes, bytes | None, Headers, int]:
        pairs = self.properties or {}
        headers = tuple((name, text.encode() if text is not None else None) for name, text in pairs.items())
        return self.value, self.key, headers, self.time_ms

    @classmethod
    def of(cls, message: Read) -> Name:
        sender, partition, number = (message.value or b"").split(b" ")[:3]
        return cls(int(sender), int(partition), int(number))


@dataclass
class Load:
    """Threads that send until they are told to stop, at most `rate` messages a second each."""

    producer: penstock.Producer
    partitions: int
    senders: int = 2
    rate: float = 1500.0
    receipts: list[list[tuple[Name, penstock.Receipt]]] = field(default_factory=list)
    trouble: list[BaseException] = field(default_factory=list)

    def __enter__(self) -> Load:
        self._stop = threading.Event()
        self.receipts = [[] for _ in range(self.senders)]
        self._threads = [
            threading.Thread(target=self._run, args=(sender,), name=f"load-{sender}") for sender in range(self.senders)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(LIMIT_S)
        assert not any(thread.is_alive() for thread in self._threads)

    @property
    def sent(self) -> int:
        return sum(map(len, self.receipts))

    def wait_for_more(self, messages: int = 1, limit_s: float = LIMIT_S) -> None:
        """Wait until so many more than now were stored: whatever was wrong is over."""
        stats = self.producer.stats
        wanted = stats().acked + messages
        over = time.monotonic() + limit_s
        while stats().acked < wanted:
            assert time.monotonic() < over, f"{wanted - stats().acked} of {messages} not within {limit_s} s: {stats()}"
            assert not self.trouble, self.trouble
            time.sleep(0.01)

    def outcomes(self, timeout: float = LIMIT_S) -> dict[Name, MessageId | PenstockError]:
        """What became of each message, waited for."""
        assert not self.trouble, self.trouble
        over = time.monotonic() + timeout
        return {name: outcome(receipt, over - time.monotonic()) for sender in self.receipts for name, receipt in sender}

    def _run(self, sender: int) -> None:
        try:
            self._send(sender)
        except BaseException as error:  # told by whoever asks for the outcomes
            self.trouble.append(error)
            raise

    def _send(self, sender: int) -> None:
        began = time.monotonic()
        mine = self.receipts[sender]
        next_number = [0] * self.partitions
        turn = 0
        while not self._stop.is_set():
            partition = turn % self.partitions
            count = MANY if turn % 40 == 39 else 1
            names = [Name(sender, partition, next_number[partition] + more) for more in range(count)]
            try:
                mine += zip(names, self._hand_over(names), strict=True)
            except NoRoomError:
                continue  # it was not taken: the same again
            next_number[partition] += count
            turn += 1
            ahead = len(mine) / self.rate - (time.monotonic() - began)
            if ahead > 0.01:
                self._stop.wait(ahead)

    def _hand_over(self, names: Sequence[Name]) -> Iterable[penstock.Receipt]:
        if len(names) == 1:
            name = names[0]
            return [self.producer.send(name.value, name.key, name.properties, name.time_ms, name.partition)]
        return self.producer.send_many(
            [name.value for name in names],
            [name.key for name in names],
            [name.properties for name in names],
            [name.time_ms for name in names],
            names[0].partition,
        )


def outcome(receipt: penstock.Receipt, timeout: float) -> MessageId | PenstockError:
    error = receipt.exception(max(timeout, 0.001))
    if error is None:
        return receipt.result(0)
    assert isinstance(error, PenstockError), error
    return error


def judge(
    outcomes: dict[Name, MessageId | PenstockError], found: Sequence[Read], *, once: bool = True, ordered: bool = True
) -> Counter[str]:
    """Hold what was found against what was said of each message; how many had which outcome.

    `once` and `ordered` are for brokers that keep the rules of idempotence; others may store a message again.
    """
    times: Counter[Name] = Counter()
    places: dict[tuple[int, int], Name] = {}
    for message in found:
        name = Name.of(message)
        assert (message.value, message.key, message.headers, message.time_ms) == name.content
        assert message.partition == name.partition
        times[name] += 1
        places[message.partition, message.offset] = name
    assert times.keys() <= outcomes.keys(), "found what nobody sent"
    kinds: Counter[str] = Counter()
    for name, became in outcomes.items():
        kinds["stored" if isinstance(became, MessageId) else type(became).__name__] += 1
        check_outcome(name, became, times[name], once)
        if once and isinstance(became, MessageId) and became.position is not None:
            assert isinstance(became.position, int)
            stands = places.get((became.partition, became.position))
            assert stands == name, f"{name} was said to be at {became}, where {stands} is"
    if ordered:
        check_order(found)
    return kinds


def check_outcome(name: Name, became: MessageId | PenstockError, times: int, once: bool) -> None:
    """Whether a message is there as often as its outcome says."""
    if isinstance(became, MessageId) or became.persisted is Persisted.YES:
        assert times == 1 if once else times >= 1, f"{name} was stored, and is there {times} times"
    elif became.persisted is Persisted.NO:
        assert times == 0, f"{name} is there {times} times, but was not stored: {became!r}"
    elif once:
        assert times <= 1, f"{name} is there {times} times: {became!r}"


def check_order(found: Sequence[Read]) -> None:
    """Whether each sender's messages stand in each partition in the order in which they were sent."""
    last: dict[tuple[int, int], int] = {}
    for message in sorted(found, key=lambda message: (message.partition, message.offset)):
        name = Name.of(message)
        lane = (name.sender, name.partition)
        assert name.number > last.get(lane, -1), f"{name} stands behind number {last[lane]}"
        last[lane] = name.number
