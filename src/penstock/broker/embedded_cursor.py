"""Durable cursors of an embedded broker, for any thread: `broker.create_cursor(...)`, `broker.cursor(...)`.

A cursor here is a name, not a thing: each call looks the cursor up on the broker's thread, and what changes it returns
when that is durable. Refused tells why something cannot be: no such topic, partition or cursor, a position that the log
does not hold, more ranges than a cursor may have. `cursor.py` says what a cursor is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.cursor import Cursor
    from penstock.broker.log.partition import Backlog, PartitionLog
    from penstock.broker.topics import Topic

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)

Place: TypeAlias = str | int | datetime
"""`earliest`, `latest`, a position, or a time: the first entry that reaches it, behind the last one if none does."""
Told: TypeAlias = Callable[[Exception | None], None]
Result = TypeVar("Result")


class Runner(Protocol):
    """How things are done on the broker's thread."""

    def on_loop(self, function: Callable[[Broker], Result]) -> Result:
        """What the function returns, called there."""

    def until_done(self, start: Callable[[Broker, Told], None]) -> None:
        """Start something there that tells later when it is done; raises what it tells."""


class EmbeddedCursor:
    """A durable cursor of one partition."""

    def __init__(self, runner: Runner, topic: str, name: str, partition: int) -> None:
        self._runner = runner
        self.topic: Final = topic
        self.name: Final = name
        self.partition: Final = partition

    def __repr__(self) -> str:
        return f"<EmbeddedCursor {self.name} of {self.topic}-{self.partition}>"

    def position(self) -> int:
        """Where it is: everything below is acknowledged, or gone."""
        return self._runner.on_loop(lambda broker: max(self._find(broker).position, self._log(broker).start))

    def acknowledged(self) -> list[range]:
        """What is acknowledged behind its position."""
        ranges = self._runner.on_loop(lambda broker: list(self._find(broker).ranges))
        return [range(first, after) for first, after in ranges]

    def backlog(self) -> Backlog:
        """What is left to read: `entries`, `messages`, `bytes`."""
        return self._runner.on_loop(lambda broker: self._find(broker).backlog(self._log(broker)))

    def acknowledge(self, *positions: int | range) -> None:
        """These messages are read: single positions, or ranges of them. All of them, or none."""
        wanted = list(_spans(positions))

        def start(broker: Broker, done: Told) -> None:
            broker.cursors.acknowledge(self._find(broker), wanted, broker.now_ms, done)

        self._runner.until_done(start)

    def acknowledge_before(self, position: int) -> None:
        """Everything below this position is read."""

        def start(broker: Broker, done: Told) -> None:
            broker.cursors.acknowledge_before(self._find(broker), position, broker.now_ms, done)

        self._runner.until_done(start)

    def reset(self, to: Place) -> int:
        """Move it, forward or back, and forget what was acknowledged behind it; where it is then."""
        place, position = check_place("to", to), 0

        def start(broker: Broker, done: Told) -> None:
            nonlocal position
            position = position_at(self._log(broker), place)
            broker.cursors.reset(self._find(broker), position, broker.now_ms, done)

        self._runner.until_done(start)
        return position

    def delete(self) -> None:
        """Forget it."""
        self._runner.until_done(lambda broker, done: broker.cursors.delete(self._find(broker), done))

    def _find(self, broker: Broker) -> Cursor:
        return broker.cursors.get(broker.topics.get(self.topic), self.partition, self.name)

    def _log(self, broker: Broker) -> PartitionLog:
        return broker.partition(self.topic, self.partition).log


def create_cursor(runner: Runner, topic: str, name: str, partition: int, at: Place) -> EmbeddedCursor:
    """A new cursor; Refused when there is one of that name in that partition."""
    place = check_place("at", at)

    def start(broker: Broker, done: Told) -> None:
        def created(outcome: Cursor | Exception) -> None:
            done(outcome if isinstance(outcome, Exception) else None)

        found: Topic = broker.topics.get(topic)
        position = position_at(broker.partition(topic, partition).log, place)
        broker.cursors.create(found, partition, name, position, broker.now_ms, created)

    runner.until_done(start)
    return EmbeddedCursor(runner, topic, name, partition)


def find_cursor(runner: Runner, topic: str, name: str, partition: int) -> EmbeddedCursor:
    """The cursor of that name; Refused when there is none."""
    found = EmbeddedCursor(runner, topic, name, partition)
    found.position()
    return found


def list_cursors(runner: Runner, topic: str, partition: int) -> list[EmbeddedCursor]:
    """All cursors of a partition, by name."""

    def names(broker: Broker) -> list[str]:
        broker.partition(topic, partition)
        return sorted(cursor.name for cursor in broker.cursors.of(broker.topics.get(topic), partition))

    return [EmbeddedCursor(runner, topic, name, partition) for name in runner.on_loop(names)]


def check_place(what: str, given: Place) -> Place:
    """A place as it was given; ConfigError for what is none."""
    is_position = isinstance(given, int) and not isinstance(given, bool)
    if is_position or given in ("earliest", "latest") or (isinstance(given, datetime) and given.tzinfo is not None):
        return given
    if isinstance(given, datetime):
        raise ConfigError(f"{what}: the datetime {given} has no time zone; give it one, as by tzinfo=timezone.utc")
    raise ConfigError(f"{what}: expected earliest, latest, a position or a datetime, found {given!r}")


def position_at(log: PartitionLog, place: Place) -> int:
    """The position of a place in a log. Runs on: the loop thread."""
    if isinstance(place, int):
        return place
    if place == "earliest":
        return log.start
    found = log.seek_time(-((EPOCH - place) // MILLISECOND)) if isinstance(place, datetime) else None
    return log.visible if found is None else found[0]


def _spans(positions: Iterable[int | range]) -> Iterable[tuple[int, int]]:
    for each in positions:
        span = range(each, each + 1) if isinstance(each, int) else each
        if span.step != 1 or not span:
            raise ConfigError(f"acknowledge: expected positions, or ranges of them in steps of 1, found {each!r}")
        yield span.start, span.stop
