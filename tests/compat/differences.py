"""What may differ between a real Kafka and `penstock serve`: the table in `docs/compatibility.md`, read as data.

Each row names a test, a place in what its script tells, both values as JSON, and the reason. A place is the path of
keys and indexes, with dots; `*` in it stands for anything. A value of `*` stands for any value that differs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
ANY = "*"
ABSENT = "absent"
ROW = re.compile(
    r"^\| `(?P<case>test_[^`]+)` \| `(?P<place>[^`]+)` \| `(?P<kafka>.+?)` \| `(?P<penstock>.+?)` \| (?P<why>.+) \|$"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One row of the table."""

    case: str
    place: str
    kafka: str
    penstock: str
    why: str

    def covers(self, place: str, kafka: str, penstock: str) -> bool:
        """Whether this row allows what was found there."""
        return (
            fnmatchcase(place, self.place.replace("[", "[[]"))
            and self.kafka in (ANY, kafka)
            and self.penstock in (ANY, penstock)
        )


@dataclass(frozen=True, slots=True)
class Found:
    """Two values that should be one."""

    place: str
    kafka: str
    penstock: str

    def __str__(self) -> str:
        return f"{self.place}: Kafka {self.kafka}, Penstock {self.penstock}"


def listed(document: Path = DOCUMENT) -> list[Difference]:
    """All rows of the table."""
    rows = (ROW.match(line) for line in document.read_text().splitlines())
    return [Difference(**row.groupdict()) for row in rows if row]


def between(kafka: Any, penstock: Any) -> list[Found]:
    """All places at which two outcomes differ."""
    one, other = dict(leaves(kafka)), dict(leaves(penstock))
    return [
        Found(place, one.get(place, ABSENT), other.get(place, ABSENT))
        for place in sorted(one.keys() | other.keys())
        if one.get(place, ABSENT) != other.get(place, ABSENT)
    ]


def leaves(outcome: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Every value that is no container, as JSON, by its place; an empty container counts as a value."""
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(outcome, Mapping):
        parts = outcome.items()
    elif isinstance(outcome, list | tuple):
        parts = enumerate(outcome)
    if not parts or not outcome:
        yield place, json.dumps(outcome, default=str, sort_keys=True)
        return
    for key, value in parts:
        yield from leaves(value, f"{place}.{key}" if place else str(key))


def judge(case: str, kafka: Any, penstock: Any, table: Iterable[Difference]) -> list[str]:
    """What is wrong: differences that are not listed, and listed ones that are none."""
    mine = [row for row in table if row.case == case]
    found = between(kafka, penstock)
    unlisted = [each for each in found if not any(_covers(row, each) for row in mine)]
    stale = [row for row in mine if not any(_covers(row, each) for each in found)]
    return [f"differs, and is not listed: {each}" for each in unlisted] + [
        f"is listed, and does not differ so: {row.place}: Kafka {row.kafka}, Penstock {row.penstock}" for row in stale
    ]


def _covers(row: Difference, found: Found) -> bool:
    return row.covers(found.place, found.kafka, found.penstock)
