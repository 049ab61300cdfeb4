"""Counters, gauges and histograms in memory, and a picture of them all at one moment.

A `Registry` holds families; a family has a name and label names; each combination of label values is a child: a
`Counter`, a `Gauge` or a `Histogram`. Whoever counts asks for its child once and keeps it, so that counting is one
short lock per batch and no look-up. Exporting is not here: exporters, statistics and tests read a `Snapshot`.

Runs on: any thread. One lock per family guards its children and their values.
"""

from __future__ import annotations

import bisect
import enum
import itertools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar


class MetricKind(enum.Enum):
    """What a family's children are."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Counter:
    """A number that only grows."""

    __slots__ = ("_lock", "_value")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock  # guards the following
        self._value: int | float = 0

    def add(self, amount: int | float = 1) -> None:
        """Count `amount` more."""
        if not amount >= 0:
            raise ValueError(f"a counter only grows, not by {amount}; what also falls is a gauge")
        with self._lock:
            self._value += amount

    def read_locked(self) -> int | float:
        """The value; the caller holds the family's lock."""
        return self._value

    def __repr__(self) -> str:
        return f"Counter({self._value})"


class Gauge:
    """A number that rises and falls."""

    __slots__ = ("_lock", "_value")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock  # guards the following
        self._value: int | float = 0

    def set(self, value: int | float) -> None:
        """Let it be `value`."""
        with self._lock:
            self._value = value

    def add(self, amount: int | float) -> None:
        """Raise it by `amount`, or lower it by a negative one."""
        with self._lock:
            self._value += amount

    def read_locked(self) -> int | float:
        """The value; the caller holds the family's lock."""
        return self._value

    def __repr__(self) -> str:
        return f"Gauge({self._value})"


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram at one moment: `counts[i]` observations were at most `bounds[i]`, the last ones above all bounds.

    Each observation is in one of the counts only; they do not add up from bucket to bucket.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    count: int
    sum: int | float


class Histogram:
    """How often observed numbers fell into fixed ranges."""

    __slots__ = ("_bounds", "_counts", "_lock", "_sum")

    def __init__(self, lock: threading.Lock, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._lock = lock  # guards the following
        self._counts = [0] * (len(bounds) + 1)
        self._sum: int | float = 0

    def observe(self, value: int | float) -> None:
        """Count one observation."""
        if math.isnan(value):
            raise ValueError("nan falls into no bucket")
        bucket = bisect.bisect_left(self._bounds, value)
        with self._lock:
            self._counts[bucket] += 1
            self._sum += value

    def read_locked(self) -> Distribution:
        """The counts; the caller holds the family's lock."""
        return Distribution(self._bounds, tuple(self._counts), sum(self._counts), self._sum)

    def __repr__(self) -> str:
        return f"Histogram(count={sum(self._counts)}, sum={self._sum})"


Child = TypeVar("Child", Counter, Gauge, Histogram)


@dataclass(frozen=True, slots=True)
class Shape:
    """What makes two families the same: name, kind, label names and, of a histogram, the bounds."""

    name: str
    kind: MetricKind
    label_names: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()

    def check(self) -> None:
        """Raise ValueError for names that no exporter could write and for bounds that are no ranges."""
        for name in (self.name, *self.label_names):
            if not (name.isidentifier() and name.isascii()):
                raise ValueError(f"{name!r} in {self}: names are made of letters, digits and underscores")
        if len(set(self.label_names)) < len(self.label_names):
            raise ValueError(f"{self} names a label twice")
        rising = all(low < high for low, high in itertools.pairwise(self.bounds))
        missing = self.kind is MetricKind.HISTOGRAM and not self.bounds
        if missing or not rising or not all(map(math.isfinite, self.bounds)):
            raise ValueError(f"{self}: the bounds of a histogram are one or more finite numbers that rise")

    def key(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """The label values in the order of the names, of which none may be missing or unknown."""
        if values.keys() != set(self.label_names):
            raise ValueError(f"{self} was given the labels ({', '.join(values)})")
        return tuple(values[name] for name in self.label_names)

    def place(self, label: str) -> int:
        """Where in a key the value of this label is."""
        if label not in self.label_names:
            raise ValueError(f"{self} has no label {label}")
        return self.label_names.index(label)

    def __str__(self) -> str:
        bounds = f" with bounds {self.bounds}" if self.bounds else ""
        return f"{self.kind.value} {self.name}({', '.join(self.label_names)}){bounds}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One child at one moment; `labels` holds the values in the order of the family's label names."""

    labels: tuple[str, ...]
    value: int | float | Distribution


@dataclass(frozen=True, slots=True)
class FamilySnapshot:
    """One family at one moment, its samples sorted by labels."""

    shape: Shape
    text: str
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All families at one moment, sorted by name. Each is consistent in itself, not with the others."""

    families: tuple[FamilySnapshot, ...]

    def value(self, name: str, /, **labels: str) -> int | float | Distribution | None:
        """The value of one child; None when there is no such child, or no such family."""
        for family in self.families:
            if family.shape.name == name:
                key = family.shape.key(labels)
                return next((sample.value for sample in family.samples if sample.labels == key), None)
        return None


class Family(Generic[Child]):
    """All children of one name. Made by a `Registry`."""

    def __init__(self, shape: Shape, text: str, make: Callable[[threading.Lock], Child]) -> None:
        self.shape = shape
        self.text = text
        self._make: Callable[[threading.Lock], Child] = make
        self._lock = threading.Lock()  # guards the following, and what each child holds
        self._children: dict[tuple[str, ...], Child] = {}

    def labels(self, **values: str) -> Child:
        """The child of these label values, made when first asked for. Keep it rather than ask again."""
        key = self.shape.key(values)
        with self._lock:
            child = self._children.get(key)
            if child is None:
                child = self._children[key] = self._make(self._lock)
            return child

    def remove(self, **values: str) -> int:
        """Forget the children that have all these values, for a closed producer or a deleted topic; says how many.

        Who still holds a removed child may go on counting into it; no snapshot shows it.
        """
        places = [(self.shape.place(name), value) for name, value in values.items()]
        with self._lock:
            gone = [key for key in self._children if all(key[place] == value for place, value in places)]
            for key in gone:
                del self._children[key]
        return len(gone)

    def snapshot(self) -> FamilySnapshot:
        """The children at this moment."""
        with self._lock:
            samples = [Sample(key, child.read_locked()) for key, child in self._children.items()]
        samples.sort(key=lambda sample: sample.labels)
        return FamilySnapshot(self.shape, self.text, tuple(samples))

    def __repr__(self) -> str:
        return f"<{self.shape}, {len(self._children)} children>"


class Registry:
    """All families of one client or broker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the following
        self._families: dict[str, Family[Any]] = {}

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Family[Counter]:
        """The family of counters of this name, made when first asked for."""
        return self._family(Family(Shape(name, MetricKind.COUNTER, tuple(labels)), text, Counter))

    def gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Family[Gauge]:
        """The family of gauges of this name, made when first asked for."""
        return self._family(Family(Shape(name, MetricKind.GAUGE, tuple(labels)), text, Gauge))

    def histogram(
        self, name: str, text: str, labels: Sequence[str] = (), *, bounds: Sequence[float]
    ) -> Family[Histogram]:
        """The family of histograms of this name, made when first asked for; `bounds` are upper ends, included."""
        shape = Shape(name, MetricKind.HISTOGRAM, tuple(labels), tuple(bounds))
        return self._family(Family(shape, text, lambda lock: Histogram(lock, shape.bounds)))

    def remove(self, **values: str) -> int:
        """Forget the children that have all these values, in every family that has these labels; says how many."""
        return sum(family.remove(**values) for family in self._all() if values.keys() <= set(family.shape.label_names))

    def snapshot(self) -> Snapshot:
        """All families at this moment."""
        return Snapshot(tuple(family.snapshot() for family in self._all()))

    def _all(self) -> list[Family[Any]]:
        with self._lock:
            return [family for _, family in sorted(self._families.items())]

    def _family(self, family: Family[Child]) -> Family[Child]:
        family.shape.check()
        with self._lock:
            known: Family[Child] = self._families.setdefault(family.shape.name, family)
        if known.shape != family.shape:
            raise ValueError(f"metric registered before as {known.shape}, not as {family.shape}")
        return known

    def __repr__(self) -> str:
        return f"<Registry of {len(self._families)} families>"
