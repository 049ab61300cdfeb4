"""The kinds of values an option takes: how each is read, from text too, and how it is told.

A kind turns what was given (a Python value, or text from the environment, a TOML file or a command line) into one
canonical value, or raises TypeError or ValueError. It knows nothing of options: by which name the value came is for
`config` to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
MB = 1_000_000
INT32_MAX = (1 << 31) - 1

_QUANTITY = re.compile(r"([+-]?[0-9]+(?:\.[0-9]+)?) *([a-z]*)")
_FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class Kind(Protocol):
    """What values an option takes."""

    @property
    def label(self) -> str:
        """The type, in one word for a table."""

    @property
    def allowed(self) -> str:
        """All values that are taken, for a table and to end the sentence "takes ..."."""

    def read(self, value: object) -> object:
        """The canonical value; TypeError or ValueError when the value is none of this kind."""

    def show(self, value: object) -> str:
        """The value as documentation spells it."""


@dataclass(frozen=True, slots=True)
class Text:
    """Printable text."""

    chars_max: int

    label: ClassVar[str] = "text"

    @property
    def allowed(self) -> str:
        """The length allowed."""
        return f"printable text of 1 to {self.chars_max} characters"

    def read(self, value: object) -> str:
        """The text as it is."""
        if not isinstance(value, str) or not value.isprintable() or not 1 <= len(value) <= self.chars_max:
            raise ValueError(value)
        return value

    def show(self, value: object) -> str:
        """The text in quotes."""
        return f'"{value}"'


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false. A number is no flag, since 1 for a count and 1 for true are too easily mixed up."""

    label: ClassVar[str] = "flag"
    allowed: ClassVar[str] = "true or false"

    def read(self, value: object) -> bool:
        """A bool, or its common spellings as text."""
        if isinstance(value, str) and value.strip().lower() in _FLAGS:
            return _FLAGS[value.strip().lower()]
        if not isinstance(value, bool):
            raise TypeError(value)
        return value

    def show(self, value: object) -> str:
        """The flag as TOML writes it."""
        return str(value).lower()


@dataclass(frozen=True, slots=True)
class Unit:
    """What a quantity counts, and the suffixes that text may give it."""

    label: str
    noun: str
    factors: Mapping[str, int]
    whole: bool


_ONES = Unit("number", "a whole number", {"": 1}, whole=True)
_BYTES = Unit(
    "size",
    "bytes",
    {"": 1, "b": 1, "kb": 1000, "mb": MB, "gb": 1000 * MB, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB},
    whole=True,
)
_MILLIS = Unit("time", "milliseconds", {"": 1, "ms": 1, "s": 1000, "min": 60_000}, whole=False)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number within a range, in a unit."""

    unit: Unit
    low: int
    high: int

    @property
    def label(self) -> str:
        """The unit's label."""
        return self.unit.label

    @property
    def allowed(self) -> str:
        """The range, both ends included."""
        return f"{self.unit.noun} from {self._human(self.low)} to {self._human(self.high)}"

    def read(self, value: object) -> int | float:
        """The number in the unit itself; a float only where the unit allows fractions and there is one."""
        number = read_number(value, self.unit.factors)
        if (isinstance(number, float) and self.unit.whole) or not self.low <= number <= self.high:
            raise ValueError(value)
        return int(number) if number == int(number) else number

    def show(self, value: object) -> str:
        """The number, and for large sizes how people say it."""
        human = self._human(value)
        return human if human == str(value) else f"{value} ({human})"

    def _human(self, value: object) -> str:
        if self.unit is _BYTES and isinstance(value, int) and value:
            for suffix, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB), ("MB", MB)):
                if value % factor == 0:
                    return f"{value // factor} {suffix}"
        return str(value)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few names, in any case; `also` holds further spellings of them."""

    names: tuple[str, ...]
    also: Mapping[str, str] = field(default_factory=dict)

    label: ClassVar[str] = "choice"

    @property
    def allowed(self) -> str:
        """The names with their other spellings."""
        spellings = {name: [other for other, meant in self.also.items() if meant == name] for name in self.names}
        told = [f"{name} (or {', '.join(others)})" if others else name for name, others in spellings.items()]
        return f"{', '.join(told[:-1])} or {told[-1]}"

    def read(self, value: object) -> str:
        """The name meant."""
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise TypeError(value)
        text = str(value).strip().lower()
        name = self.also.get(text, text)
        if name not in self.names:
            raise ValueError(value)
        return name

    def show(self, value: object) -> str:
        """The name."""
        return str(value)


@dataclass(frozen=True, slots=True)
class Names:
    """A list of names, each once."""

    label: ClassVar[str] = "names"
    allowed: ClassVar[str] = 'a list of names, as text "region, version"'

    def read(self, value: object) -> tuple[str, ...]:
        """The names in the order given."""
        names = _read_texts(value)
        if not all(names):
            raise ValueError(value)
        return names

    def show(self, value: object) -> str:
        """The names, or that there are none."""
        return ", ".join(self.read(value)) or "none"


@dataclass(frozen=True, slots=True)
class ValueLists:
    """Names, each with a list of values."""

    label: ClassVar[str] = "lists"
    allowed: ClassVar[str] = 'a mapping of names to lists of at least one value, as text "region=us,eu; version=1,2"'

    def read(self, value: object) -> dict[str, tuple[str, ...]]:
        """A new mapping of each name to its values."""
        pairs = _read_pairs(value)
        lists = {name: _read_texts(values) for name, values in pairs}
        if len(lists) < len(pairs) or not all(isinstance(name, str) and name and lists[name] for name in lists):
            raise ValueError(value)
        return lists

    def show(self, value: object) -> str:
        """The mapping as text, or that it is empty."""
        return "; ".join(f"{name}={','.join(values)}" for name, values in self.read(value).items()) or "none"


def count(low: int, high: int) -> Quantity:
    """A whole number from `low` to `high`."""
    return Quantity(_ONES, low, high)


def size(low: int, high: int) -> Quantity:
    """A number of bytes; text may say "256 KiB" (1024 each) or "1 MB" (1000 each)."""
    return Quantity(_BYTES, low, high)


def millis(low: int, high: int) -> Quantity:
    """A number of milliseconds, fractions too; text may say "30 s" or "2 min"."""
    return Quantity(_MILLIS, low, high)


def read_number(value: object, factors: Mapping[str, int] = _ONES.factors) -> int | float:
    """The number given, or told by text with one of the suffixes; a bool is no number."""
    if isinstance(value, str):
        found = _QUANTITY.fullmatch(value.strip().lower())
        if found is None or found[2] not in factors:
            raise ValueError(value)
        number: int | float = float(found[1]) if "." in found[1] else int(found[1])
        return number * factors[found[2]]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    return value


def _read_texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        texts: list[object] = [part.strip() for part in value.split(",")] if value.strip() else []
        if "" in texts:
            raise ValueError(value)
    elif isinstance(value, Set):
        texts = sorted(value, key=str)
    elif isinstance(value, list | tuple):
        texts = list(value)
    else:
        raise TypeError(value)
    strings = [text for text in texts if isinstance(text, str)]
    if len(strings) < len(texts):
        raise ValueError(value)
    return tuple(dict.fromkeys(strings))


def _read_pairs(value: object) -> list[tuple[str, object]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if not isinstance(value, str):
        raise TypeError(value)
    parts = [part.partition("=") for part in value.split(";") if part.strip()]
    return [(name.strip(), values) for name, _, values in parts]
