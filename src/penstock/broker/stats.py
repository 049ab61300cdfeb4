"""Counting what passes a broker. What the counts tell is computed in `report.py`, when somebody asks.

Counting is a few additions on the loop thread: `PartitionStats.published` once per entry that is stored, `.delivered`
once per slice that is sent. Nothing runs on a timer, so nobody pays for statistics that nobody reads, and what is idle
costs nothing: a partition has no counters before something passes it.

Producers are counted by name in each partition. Names come from clients, so their number is bounded: when the names of
clients that are gone have been dropped and there still are too many, the others are counted under one name.

`now` is seconds of one clock, the same for all calls. A clock that goes back begins its rates anew.

Runs on: the loop thread.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.broker.filters import FilterCounts

WINDOW_S: Final = 10.0
COVERED_S_MIN: Final = 1.0
OTHERS: Final = "(others)"
PRODUCERS_MAX: Final = 20_000
PARTITION_PRODUCERS_MAX: Final = 256
PRUNE_EVERY_S: Final = 10.0


class Counts(NamedTuple):
    """How much passed, or passes each second."""

    entries: float = 0
    messages: float = 0
    bytes: float = 0

    def plus(self, other: Counts) -> Counts:
        """Both together."""
        return Counts(self.entries + other.entries, self.messages + other.messages, self.bytes + other.bytes)

    def minus(self, other: Counts) -> Counts:
        """What this has more."""
        return Counts(self.entries - other.entries, self.messages - other.messages, self.bytes - other.bytes)


NO_COUNTS: Final = Counts()


class Flow:
    """Entries, messages and bytes that passed, and how fast over the last ten seconds.

    Time is cut into windows. A rate is what the present window holds and the share of the one before that is less than
    a window old, so that it neither jumps at the edge of a window nor needs a timer: what stands still falls to zero.
    """

    __slots__ = ("_before", "_began", "_mark", "_since", "_until", "bytes", "entries", "messages")

    def __init__(self, now: float) -> None:
        self.entries = 0
        self.messages = 0
        self.bytes = 0
        self._mark = self._before = NO_COUNTS
        self._began = self._since = now
        self._until = now + WINDOW_S

    def add(self, messages: int, size: int, now: float, entries: int = 1) -> None:
        """Count what passed."""
        if not self._since <= now < self._until:
            self._turn(now)
        self.entries += entries
        self.messages += messages
        self.bytes += size

    @property
    def total(self) -> Counts:
        """All that passed."""
        return Counts(self.entries, self.messages, self.bytes)

    def rates(self, now: float) -> Counts:
        """How much passes each second; while the flow is younger than a window, over its age."""
        windows, share = divmod(now - self._since, WINDOW_S)
        if windows not in (0, 1):
            return NO_COUNTS
        here = self.total.minus(self._mark)
        before, here = (self._before, here) if windows == 0 else (here, NO_COUNTS)
        kept = 1 - share / WINDOW_S
        covered = min(WINDOW_S, max(now - self._began, COVERED_S_MIN))
        return Counts(*((old * kept + new) / covered for old, new in zip(before, here, strict=True)))

    def _turn(self, now: float) -> None:
        windows = (now - self._since) // WINDOW_S
        if windows < 0:
            self._began = self._since = now
        else:
            self._since += windows * WINDOW_S
        total = self.total
        self._before = total.minus(self._mark) if windows == 1 else NO_COUNTS
        self._mark = total
        self._until = self._since + WINDOW_S

    def __repr__(self) -> str:
        return f"<Flow of {self.entries} entries, {self.messages} messages, {self.bytes} bytes>"


class PartitionStats:
    """What one partition counts. Made by `Stats.partition`; the partition keeps it."""

    __slots__ = ("_all", "_filters", "delivered_flow", "producers", "published_flow")

    def __init__(self, stats: Stats) -> None:
        self._all = stats
        self._filters: FilterCounts | None = None
        self.published_flow: Flow | None = None
        self.delivered_flow: Flow | None = None
        self.producers: dict[str, Flow] = {}

    def published(self, producer: str, messages: int, size: int, now: float) -> None:
        """One more entry was stored, from the producer of this name."""
        flow = self.published_flow
        if flow is None:
            flow = self.published_flow = Flow(now)
        flow.add(messages, size, now)
        by_name = self.producers.get(producer)
        if by_name is None:
            by_name = self._all.new_producer(self, producer, now)
        by_name.add(messages, size, now)

    def delivered(self, entries: int, messages: int, size: int, now: float) -> None:
        """A reader was given stretches of the log."""
        flow = self.delivered_flow
        if flow is None:
            flow = self.delivered_flow = Flow(now)
        flow.add(messages, size, now, entries)

    @property
    def filters(self) -> FilterCounts:
        """What became of entries that were judged; made when first asked for."""
        if self._filters is None:
            self._filters = FilterCounts()
        return self._filters

    @property
    def has_filtered(self) -> bool:
        """Whether any entry was judged."""
        return self._filters is not None


class Stats:
    """All counters of a broker."""

    def __init__(self) -> None:
        self._partitions: dict[str, dict[int, PartitionStats]] = {}
        self._connections: dict[str, int] = {}
        self._producers = 0
        self._pruned_at: float | None = None

    def partition(self, topic: str, number: int) -> PartitionStats:
        """The counters of one partition, made when first asked for. Keep them rather than ask again."""
        numbers = self._partitions.setdefault(topic, {})
        if number not in numbers:
            numbers[number] = PartitionStats(self)
        return numbers[number]

    def topic(self, topic: str) -> dict[int, PartitionStats]:
        """The counters of a topic's partitions, as far as any are counted."""
        return self._partitions.get(topic, {})

    def drop_topic(self, topic: str) -> None:
        """Forget a deleted topic."""
        for partition in self._partitions.pop(topic, {}).values():
            self._producers -= len(partition.producers)

    def connected(self, client: str) -> None:
        """A connection told its client's name: on Kafka's wire, the client id of its first request."""
        self._connections[client] = self._connections.get(client, 0) + 1

    def disconnected(self, client: str) -> None:
        """A connection that had told this name was closed."""
        left = self._connections.get(client, 0) - 1
        if left > 0:
            self._connections[client] = left
        else:
            self._connections.pop(client, None)

    def connections(self, client: str) -> int:
        """How many connections the client of this name has."""
        return self._connections.get(client, 0)

    def new_producer(self, partition: PartitionStats, name: str, now: float) -> Flow:
        """Where to count a producer that this partition has not seen, or not for long."""
        if self._is_full(partition):
            self._prune(now)
            if self._is_full(partition):
                name = OTHERS
        flow = partition.producers.get(name)
        if flow is None:
            flow = partition.producers[name] = Flow(now)
            self._producers += 1
        return flow

    def _is_full(self, partition: PartitionStats) -> bool:
        named = len(partition.producers) - (OTHERS in partition.producers)
        return self._producers >= PRODUCERS_MAX or named >= PARTITION_PRODUCERS_MAX

    def _prune(self, now: float) -> None:
        """Drop the names of clients that are gone; not too often, since it goes through all of them."""
        if self._pruned_at is not None and 0 <= now - self._pruned_at < PRUNE_EVERY_S:
            return
        self._pruned_at = now
        for numbers in self._partitions.values():
            for partition in numbers.values():
                gone = [name for name in partition.producers if name not in self._connections and name != OTHERS]
                for name in gone:
                    del partition.producers[name]
                self._producers -= len(gone)

    def __repr__(self) -> str:
        return f"<Stats of {len(self._partitions)} topics, {self._producers} producers>"
