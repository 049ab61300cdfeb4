"""Patterns of topic names, matched in linear time whatever the pattern is.

A member may subscribe to a pattern, and the broker matches it on the thread that serves everybody: the usual engines
go back and try again, and a pattern such as `(a+)+b` keeps them busy for ever. Here a pattern is a set of places in it
that are reached at once, character by character; sets that were seen before are looked up.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.broker.groups.pattern_syntax import (
    BEGIN,
    END,
    Chars,
    Edge,
    Either,
    Item,
    PatternError,
    Repeat,
    Row,
    parse,
)

NODES_MAX: Final = 500
"""Places in a pattern; a repetition counts as often as it may be repeated."""
CACHE_MAX: Final = 5000


class _Node(NamedTuple):
    """A place in a pattern: one of these characters leads on to `ways`, or nothing, or an edge of the name."""

    chars: Chars | None
    edge: Edge | None
    ways: tuple[int, ...]


MATCHED: Final = 0


class _Builder:
    """Places are laid from the end of the pattern to its begin; place 0 is the end."""

    def __init__(self) -> None:
        self.nodes: list[_Node] = [_Node(None, None, ())]

    def lay(self, item: Item, then: int) -> int:
        if isinstance(item, Chars):
            return self._add(_Node(item, None, (then,)))
        if isinstance(item, Edge):
            return self._add(_Node(None, item, (then,)))
        if isinstance(item, Either):
            return self._add(_Node(None, None, tuple(self.lay(branch, then) for branch in item.items)))
        if isinstance(item, Row):
            for part in reversed(item.items):
                then = self.lay(part, then)
            return then
        return self._lay_repeat(item, then)

    def _lay_repeat(self, repeat: Repeat, then: int) -> int:
        if repeat.most is None:
            loop = self._add(_Node(None, None, ()))
            self.nodes[loop] = _Node(None, None, (self.lay(repeat.item, loop), then))
            then = loop
        else:
            for _ in range(repeat.most - repeat.least):
                then = self._add(_Node(None, None, (self.lay(repeat.item, then), then)))
        for _ in range(repeat.least):
            then = self.lay(repeat.item, then)
        return then

    def _add(self, node: _Node) -> int:
        if len(self.nodes) >= NODES_MAX:
            raise PatternError(f"the pattern has more than {NODES_MAX} places, repetitions counted")
        self.nodes.append(node)
        return len(self.nodes) - 1


class Pattern:
    """A pattern, ready to be matched. PatternError when the text is none."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.work = 0
        """What matching has cost so far: places looked at, and characters looked up."""
        builder = _Builder()
        first = builder.lay(parse(text), MATCHED)
        self._nodes = builder.nodes
        self._first = self._reach({first}, at_begin=True)
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def __repr__(self) -> str:
        return f"<Pattern {self.text!r}>"

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        places = self._first
        self.work += len(name)
        for char in name:
            after = self._steps.get((places, char))
            if after is None:
                after = self._step(places, char)
            places = after
            if not places:
                return False
        return MATCHED in self._reach(set(places), at_begin=not name, at_end=True)

    def _step(self, places: frozenset[int], char: str) -> frozenset[int]:
        self.work += len(places)
        nodes = self._nodes
        reached = {
            node.ways[0]
            for node in (nodes[place] for place in places)
            if node.chars is not None and node.chars.holds(char)
        }
        if len(self._steps) >= CACHE_MAX:
            self._steps.clear()
        after = self._steps[places, char] = self._reach(reached)
        return after

    def _reach(self, places: set[int], at_begin: bool = False, at_end: bool = False) -> frozenset[int]:
        """The places that are reached from these without a character; those that go on without one are left out."""
        found, seen, todo = [], set(places), list(places)
        while todo:
            place = todo.pop()
            node = self._nodes[place]
            is_edge = node.edge is not None
            if node.chars is not None or place == MATCHED or (is_edge and node.edge is END and not at_end):
                found.append(place)
                continue
            if is_edge and node.edge is BEGIN and not at_begin:
                continue
            for way in node.ways:
                if way not in seen:
                    seen.add(way)
                    todo.append(way)
        self.work += len(seen)
        return frozenset(found)
