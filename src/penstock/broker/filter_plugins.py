"""Entry filters by name: how the setting names them, and where they are found.

    property(region in us, eu; version = 1), mine, audit("a)b")     none

Filters in the order in which they judge, parted by commas, each with its configuration in parentheses. Within them,
parentheses pair and quotes hide what is in them; what the configuration means is the filter's business. `none` alone
means no filter, for a topic that is to have none although its namespace or the broker has.

A name is one that was given in code, or an entry point of an installed distribution in the group
`penstock.entry_filters`:

    [project.entry-points."penstock.entry_filters"]
    mine = "package.module:MyFilter"

What it leads to is called with the configuration and returns the filter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import metadata
from typing import TYPE_CHECKING, Final, NamedTuple, TypeGuard, cast

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.broker.filters import EntryFilter, FilterFactory

ENTRY_POINTS: Final = "penstock.entry_filters"
NO_FILTER: Final = "none"

_NAME = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.\-]*)\s*")
_QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""", re.DOTALL)


class FilterSpec(NamedTuple):
    """A filter as it is named by a setting."""

    name: str
    configuration: str

    @property
    def text(self) -> str:
        """As a setting spells it."""
        return f"{self.name}({self.configuration})" if self.configuration else self.name


def read_specs(text: str) -> list[FilterSpec]:
    """The filters that a setting names, in order; ConfigError when it cannot be understood."""
    if text.strip() == NO_FILTER:
        return []
    specs: list[FilterSpec] = []
    at = 0
    while True:
        name = _NAME.match(text, at)
        if name is None:
            raise ConfigError(f"{_place(text, at)} expected the name of a filter")
        at = name.end()
        configuration = ""
        if text.startswith("(", at):
            end = _closing(text, at)
            configuration, at = text[at + 1 : end - 1].strip(), end
        specs.append(FilterSpec(name[1], configuration))
        rest = text[at:].lstrip()
        if not rest:
            return specs
        if not rest.startswith(","):
            raise ConfigError(f"{_place(text, at)} expected a comma before the next filter")
        at = len(text) - len(rest) + 1


class FilterPlugins:
    """The filters that can be had by name. Entry points are looked up when a name is not among the given ones."""

    def __init__(self, given: Mapping[str, FilterFactory | EntryFilter]) -> None:
        self._given = dict(given)

    def make(self, spec: FilterSpec) -> EntryFilter:
        """The filter that this names; ConfigError when there is none, or it does not take its configuration."""
        found = self._given.get(spec.name)
        if found is None:
            found = self._load(spec.name)
        if _is_ready(found):
            if spec.configuration:
                raise ConfigError(f"entry filter {spec.name} was given ready made and takes no configuration")
            return found
        try:
            made = cast("FilterFactory", found)(spec.configuration)
        except ConfigError as error:
            raise ConfigError(f"entry filter {spec.name}: {error}") from error
        except Exception as error:
            raise ConfigError(
                f"entry filter {spec.name} cannot be made of {spec.configuration!r}: {error!r}"
            ) from error
        if not callable(getattr(made, "filter_entry", None)):
            raise ConfigError(f"entry filter {spec.name} has no method filter_entry")
        return made

    def _load(self, name: str) -> FilterFactory:
        points = {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}
        if name not in points:
            known = sorted({*self._given, *points})
            near = get_close_matches(name, known, 1)
            hint = f"; {near[0]}?" if near else f"; known are {', '.join(known)}"
            raise ConfigError(f"there is no entry filter {name!r}{hint}")
        try:
            loaded: FilterFactory = points[name].load()
        except Exception as error:
            raise ConfigError(f"entry filter {name} ({points[name].value}) cannot be loaded: {error!r}") from error
        self._given[name] = loaded
        return loaded


def _is_ready(found: FilterFactory | EntryFilter) -> TypeGuard[EntryFilter]:
    return not isinstance(found, type) and hasattr(found, "filter_entry")


def _closing(text: str, at: int) -> int:
    """Where the parenthesis that opens here is closed, and one further."""
    depth = 0
    start = at
    while at < len(text):
        quoted = _QUOTED.match(text, at)
        if quoted is not None:
            at = quoted.end()
            continue
        depth += (text[at] == "(") - (text[at] == ")")
        at += 1
        if not depth:
            return at
    raise ConfigError(f"{_place(text, start)} this parenthesis is not closed")


def _place(text: str, at: int) -> str:
    rest = text[at : at + 40].strip()
    return f"entry filters, character {at + 1} ({rest!r}):" if rest else "entry filters, at the end:"
