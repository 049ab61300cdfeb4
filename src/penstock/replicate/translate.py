"""Consumer groups moved to the target of a copy: to where they are at the source, exactly.

    translator = Translator(source, target, alias="west", rename="west.{}".format, copier="penstock.west")
    for move in translator.translate("billing"):
        print(move)

What a group has committed at the source is looked up in the maps of the copied partitions (`position_map.py`) and
committed at the target. It is written as checkpoints too, from which MirrorMaker's tools read the same.

What is asked in which order matters, since the copy goes on meanwhile: first how far the group and the copier have
come, then where the target's logs end, then the points. All messages before such an end are then known to the maps: a
point is stored before its messages count.

Two things make a group read messages again: that the copy is behind the group, and that the group is further on at the
target already. Neither is done unless it is asked for. Nothing makes it miss messages.

Runs on: one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Final, NamedTuple
from uuid import UUID

from penstock.client import Client
from penstock.consume.cursor import Cursor
from penstock.errors import ConfigError, RefusedError, UnknownTopicError
from penstock.replicate.mirror_formats import Checkpoint, checkpoints_topic
from penstock.replicate.point_log import KEPT_FOR_EVER, PointLog, PointMaps, create_missing
from penstock.replicate.position_map import PositionMap
from penstock.wire.protocol import Mark, Partition, TopicView

TIMEOUT: Final = 30.0
COMPACTED: Final = {"cleanup.policy": "compact"}
HAS_MEMBERS: Final = frozenset(
    {"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "FENCED_MEMBER_EPOCH", "STALE_MEMBER_EPOCH"}
)
"""What a group with members says to one who commits without being one."""


@dataclass(frozen=True, slots=True)
class Move:
    """A group's position in one partition, and what became of it."""

    source: Partition
    target: Partition
    mark: Mark
    """What the group has committed at the source."""
    position: int | None
    """Where that is at the target; None where it is not known."""
    behind: int = 0
    """How many positions the copy is behind the group, as far as that is known: it would read them again."""
    why_not: str = ""
    """Why it was not committed; empty: it was, or was not to be."""

    def __str__(self) -> str:
        place = "nowhere" if self.position is None else f"position {self.position}"
        why_not = f", not moved: {self.why_not}" if self.why_not else ""
        return f"{self.source}, position {self.mark.position}: {self.target}, {place}{why_not}"


class Copy(NamedTuple):
    """One topic's copy as it was at some moment."""

    topic: str
    """Its name at the target."""
    log: UUID | None
    starts: Mapping[int, int]
    """Where the target's logs start, and where they end for readers of what is committed."""
    ends: Mapping[int, int]
    copied: Mapping[int, int] | None
    """How far the copier has come in the source's partitions, None where that is not known; it has only begun with
    those that are not among them."""


class Translator:
    """Finds the positions of one source's messages and groups at the target of a copy."""

    def __init__(
        self,
        source: Client,
        target: Client,
        alias: str,
        rename: Callable[[str], str],
        *,
        copier: str | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        """`alias` is what the copy calls the source, `rename` tells the name that a topic of it has at the target.

        `copier` is the group at the target in which the copier commits how far it has come in the source; without it
        nobody can tell that the copy is behind a group. `timeout` is for each answer that is waited for.
        """
        self._source = source
        self._target = target
        self._rename = rename
        self._copier = copier
        self._timeout = timeout
        self._points = PointLog(target, alias)
        self._checkpoints = checkpoints_topic(alias)
        self._written: dict[bytes, bytes] = {}

    def __repr__(self) -> str:
        return f"<Translator from {self._source.url} to {self._target.url}, {self._points!r}>"

    def topics(self) -> list[str]:
        """The topics of the source that are copied and still there."""
        copied = self._points.read_on(self._timeout).topics()
        there = set(self._source.topics(self._timeout))
        return [topic for topic in copied if topic in there]

    def map_of(self, topic: str, partition: int) -> PositionMap:
        """The map of a partition of the source, with all points that were told up to now."""
        log = self._view(self._rename(topic)).id
        return self._points.read_on(self._timeout).get(Partition(topic, partition), log)

    def translate(
        self, group: str, to: str | None = None, *, topics: Collection[str] | None = None, repeats: bool = False
    ) -> list[Move]:
        """Move a group to the target, there under the name `to` or its own, in these topics or all that are copied.

        `repeats` allows moves after which it reads messages again: where the copy is behind it, and where it is further
        on at the target. Partitions that cannot be moved are told, and left. A group that has members at the target is
        refused: they must be stopped before.
        """
        moves = self._found([group], self._topics_named(topics))[group]
        if not moves:
            raise ConfigError(f"group: {group!r} has committed nothing at the source in the topics that are copied")
        done = list(self._committed(to or group, moves, repeats))
        self._write(_checkpoints(group, done))
        return done

    def write_checkpoints(
        self, groups: Collection[str] | None = None, topics: Collection[str] | None = None
    ) -> list[Checkpoint]:
        """Write where these groups are, without moving them; what was written: all that has changed since last time."""
        if groups is None or isinstance(groups, str):
            raise ConfigError(f"groups: expected a list of names, found {groups!r}")
        found = self._found(list(groups), self._topics_named(topics))
        return self._write(chain.from_iterable(_checkpoints(group, moves) for group, moves in found.items()))

    # Finding out

    def _topics_named(self, given: Collection[str] | None) -> list[str]:
        if isinstance(given, str):
            raise ConfigError(f"topics: expected a list of names, found {given!r}")
        topics = self.topics() if given is None else list(dict.fromkeys(given))
        renamed = {self._rename(topic): topic for topic in topics}
        if shared := sorted(set(topics) - set(renamed.values())):
            raise ConfigError(f"topics: {', '.join(shared)}: at the target it has the name of another one's copy")
        return topics

    def _found(self, groups: Sequence[str], topics: Sequence[str]) -> dict[str, list[Move]]:
        """Where these groups are in these topics, on both sides; nothing is changed."""
        marks = {
            (group, topic): self._source.cursor(topic, group).marks(self._timeout)
            for topic in topics
            for group in groups
        }
        copies = {topic: self._copy_of(topic) for topic in topics}
        maps = self._points.read_on(self._timeout)
        return {
            group: [
                _move(Partition(topic, number), mark, copies[topic], maps)
                for topic in topics
                for number, mark in marks[group, topic].items()
            ]
            for group in groups
        }

    def _copy_of(self, topic: str) -> Copy:
        name = self._rename(topic)
        try:
            view = self._view(name)
        except UnknownTopicError:
            return Copy(name, None, {}, {}, None)
        copied = None if self._copier is None else self._target.cursor(name, self._copier).positions(self._timeout)
        return Copy(name, view.id, self._spots(name, "earliest"), self._spots(name, "latest"), copied)

    def _view(self, name: str) -> TopicView:
        """A topic of the target."""
        view = self._target.metadata([name], self._timeout).topics.get(name)
        if view is None:
            raise UnknownTopicError(f"the target has no topic {name}")
        if view.error is not None:
            raise view.error
        return view

    def _spots(self, name: str, spot: str) -> dict[int, int]:
        """Where all partitions of a topic of the target start or end: where a reader would begin that reads nothing."""
        with self._target.reader(name, spot, spot) as reader:
            reader.ready(self._timeout)
            return reader.positions()

    # Changing

    def _committed(self, group: str, moves: Sequence[Move], repeats: bool) -> Iterator[Move]:
        """What became of these moves, topic after topic."""
        for topic, some in groupby(moves, key=lambda move: move.target.topic):
            cursor = self._target.cursor(topic, group)
            judged = list(some)
            if not repeats and any(not move.why_not for move in judged):
                there = cursor.positions(self._timeout)
                judged = [_without_repeats(move, there.get(move.target.number, 0)) for move in judged]
            self._commit(cursor, judged)
            yield from judged

    def _commit(self, cursor: Cursor, moves: Iterable[Move]) -> None:
        marks = {
            move.target.number: Mark(move.position, move.mark.note)
            for move in moves
            if move.position is not None and not move.why_not
        }
        try:
            cursor.commit(marks, self._timeout)
        except RefusedError as error:
            if error.code not in HAS_MEMBERS:
                raise
            text = f"group {cursor.name} has members at the target: stop them, then translate it again"
            raise RefusedError(text, error.code) from error

    def _write(self, checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
        """Write those that have changed."""
        if self._create_topic():
            self._written.clear()
        encoded = {one: one.encode() for one in checkpoints}
        changed = {one: record for one, record in encoded.items() if self._written.get(record[0]) != record[1]}
        if changed:
            keys, values = zip(*changed.values(), strict=True)
            with self._target.producer(self._checkpoints) as producer:
                producer.send_many(values, keys, partition=0).result(self._timeout)
            self._written.update(changed.values())
        return list(changed)

    def _create_topic(self) -> bool:
        try:
            return create_missing(self._target, self._checkpoints, COMPACTED)
        except RefusedError as error:
            if error.code != "INVALID_CONFIG":  # a cluster that does not compact
                raise
            return create_missing(self._target, self._checkpoints, KEPT_FOR_EVER)


def _move(source: Partition, mark: Mark, copy: Copy, maps: PointMaps) -> Move:
    """Where a group's position is at the target, and what may keep it from there."""
    number, target = source.number, Partition(copy.topic, source.number)
    if number not in copy.ends:
        what = f"partition {number}" if copy.ends else "such topic"
        return Move(source, target, mark, None, why_not=f"the target has no {what}")
    points, start = maps.get(source, copy.log), copy.starts[number]
    if points.first is None:
        return Move(source, target, mark, None, why_not="nothing was told of its copy")
    copied = mark.position if copy.copied is None else copy.copied.get(number, points.first.source)
    behind = max(mark.position - copied, 0)
    position = points.target_of(min(mark.position, copied), copy.ends[number])
    why_not = ""
    if position is None:
        why_not = f"nothing was told of its copy before position {points.first.source}"
    elif position < start:
        why_not = f"the target has deleted what was before position {start}"
    return Move(source, target, mark, position, behind, why_not)


def _without_repeats(move: Move, there: int) -> Move:
    """The move, unless the group would read messages again; `there` is where it is at the target."""
    if move.why_not or move.position is None:
        return move
    if move.behind:
        return replace(move, why_not=f"the copy is {move.behind} positions behind; wait for it, or allow repeats")
    if move.position < there:
        return replace(move, why_not=f"it is at position {there} already; to move it back, allow repeats")
    return move


def _checkpoints(group: str, moves: Iterable[Move]) -> Iterator[Checkpoint]:
    for move in moves:
        if move.position is not None:
            yield Checkpoint(group, *move.target, move.mark.position, move.position, move.mark.note)
