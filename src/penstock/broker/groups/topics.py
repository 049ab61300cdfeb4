"""What groups see of topics: which there are, which match a member's pattern, and that something has changed.

Matching a pattern against all topics is done a bounded piece at a time: what does not fit into a request is done in
later turns, and until then the pattern matches nothing yet. A topic that comes later is matched the same way. Groups
find out by `version`, which grows with every change, when a member of theirs comes by.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, Protocol
from uuid import UUID

from penstock.broker.groups.pattern import Pattern
from penstock.broker.groups.pattern_syntax import PatternError
from penstock.broker.refusals import Refusal, Refused

WORK_MAX: Final = 50_000
"""How much matching is done at a time, in steps of a pattern: some ten milliseconds."""
PATTERNS_MAX: Final = 1_000
"""Different patterns that the members of all groups may have."""


class TopicSeen(Protocol):
    """A topic as groups see it."""

    @property
    def id(self) -> UUID:
        """Who it is; a topic that is created again is another one."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def partitions(self) -> int:
        """How many it has."""


class TopicsSeen(Protocol):
    """All topics as groups see them; `broker.topics.Topics` are these."""

    def find(self, name: str) -> TopicSeen | None:
        """The topic of that name."""

    def by_id(self, topic_id: UUID) -> TopicSeen | None:
        """The topic of that id."""

    def __iter__(self) -> Iterator[TopicSeen]:
        """All of them."""


class _Watch:
    """A pattern that members have: the topics that match, and those that are still to be looked at."""

    __slots__ = ("holders", "is_known", "names", "pattern", "todo")

    def __init__(self, pattern: Pattern, todo: deque[str]) -> None:
        self.pattern = pattern
        self.todo = todo
        self.names: set[str] = set()
        self.holders = 0
        self.is_known = False


class TopicWatch:
    """Topics, patterns, and a version. Runs on: the loop thread."""

    def __init__(self, topics: TopicsSeen) -> None:
        self.topics = topics
        self.version = 0
        self._watches: dict[str, _Watch] = {}
        self._unfinished: dict[str, None] = {}

    def __repr__(self) -> str:
        return f"<TopicWatch of {len(self._watches)} patterns, {len(self._unfinished)} unfinished>"

    def check(self, text: str) -> None:
        """Refused if that is no pattern, or one too many."""
        if text in self._watches:
            return
        if len(self._watches) >= PATTERNS_MAX:
            raise Refused(Refusal.BAD_PATTERN, f"there are {PATTERNS_MAX} patterns already")
        try:
            Pattern(text)
        except PatternError as error:
            raise Refused(Refusal.BAD_PATTERN, str(error)) from error

    def hold(self, text: str) -> None:
        """A member has this pattern, which was checked."""
        watch = self._watches.get(text)
        if watch is None:
            watch = self._watches[text] = _Watch(Pattern(text), deque(topic.name for topic in self.topics))
            self._unfinished[text] = None
            self._match(text, watch, WORK_MAX)
        watch.holders += 1

    def release(self, text: str) -> None:
        """A member does not have this pattern any more."""
        watch = self._watches[text]
        watch.holders -= 1
        if not watch.holders:
            del self._watches[text]
            self._unfinished.pop(text, None)

    def matching(self, text: str) -> frozenset[str] | None:
        """The names of the topics that match; None while the topics that there were have not all been looked at."""
        watch = self._watches[text]
        return frozenset(watch.names) if watch.is_known else None

    def turn(self) -> bool:
        """Do a piece of the matching that is left; whether more is left."""
        work = WORK_MAX
        for text in list(self._unfinished):
            if work <= 0:
                break
            work -= self._match(text, self._watches[text], work)
        return bool(self._unfinished)

    def created(self, topic: TopicSeen) -> None:
        """There is a new topic."""
        self.version += 1
        for text, watch in self._watches.items():
            watch.todo.append(topic.name)
            self._unfinished[text] = None

    def grown(self) -> None:
        """A topic has more partitions."""
        self.version += 1

    def deleted(self, topic: TopicSeen) -> None:
        """A topic is gone."""
        self.version += 1
        for watch in self._watches.values():
            watch.names.discard(topic.name)

    def _match(self, text: str, watch: _Watch, budget: int) -> int:
        """Look at topics that were not looked at; what it cost."""
        pattern = watch.pattern
        before = pattern.work
        while watch.todo and pattern.work - before < budget:
            name = watch.todo.popleft()
            if pattern.matches(name) and self.topics.find(name) is not None:
                watch.names.add(name)
                self.version += 1
        if not watch.todo:
            del self._unfinished[text]
            if not watch.is_known:
                watch.is_known = True
                self.version += 1
        return pattern.work - before + 1
