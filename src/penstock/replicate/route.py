"""Which topics are copied, and what they are called in the target. Pure.

Topics are named, or chosen by a pattern. A pattern never chooses what systems and copiers keep for themselves: names
that begin with two underscores, MirrorMaker's internal topics, and copies that came from the target.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import ConfigError

SAME_NAME: Final = "{topic}"
_INTERNAL = re.compile(r"__.*|mm2-.*\.internal|.*\.(checkpoints|heartbeats)\.internal|heartbeats")
_FIELDS = re.compile(r"\{([^{}]*)\}")
_BRACES = frozenset("{}")


@dataclass(frozen=True, slots=True)
class Route:
    """The topics of one pipeline."""

    names: tuple[str, ...]
    """Topics by name; none where a pattern chooses."""
    pattern: re.Pattern[str] | None
    rename: str
    alias: str
    """What the source's cluster is called."""
    copies: re.Pattern[str] | None = None
    """What copies of the target's own topics are called in the source, where that is known."""

    @classmethod
    def read(
        cls, topics: str | Sequence[str], pattern: str | None, rename: str, alias: str, target_alias: str = ""
    ) -> Route:
        """The route as users say it; ConfigError for what is none."""
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        if bool(names) is (pattern is not None):
            raise ConfigError("topics: name them, or give a pattern that chooses them; one of the two")
        for name in names:
            if not isinstance(name, str) or not name:
                raise ConfigError(f"topics: expected names, found {name!r}")
        if len(set(names)) < len(names):
            raise ConfigError(f"topics: each is named once, found {sorted(names)}")
        compiled = None if pattern is None else _compiled(pattern)
        _checked(rename, alias)
        copies = _copies(rename, target_alias) if target_alias else None
        return cls(names, compiled, rename, alias, copies)

    def target_of(self, topic: str) -> str:
        """What the copy of a topic is called."""
        return self.rename.format(topic=topic, cluster=self.alias)

    def chosen(self, topics: Iterable[str]) -> list[str]:
        """The topics that are copied, of those that there are."""
        if self.pattern is None:
            return list(self.names)
        wanted = filter(self.pattern.fullmatch, topics)
        return sorted(topic for topic in wanted if not _INTERNAL.fullmatch(topic) and not self._is_copy(topic))

    def _is_copy(self, topic: str) -> bool:
        return self.copies is not None and self.copies.fullmatch(topic) is not None

    @property
    def keeps_names(self) -> bool:
        """Whether copies are called as their sources."""
        return self.rename == SAME_NAME


def _compiled(pattern: str) -> re.Pattern[str]:
    if not isinstance(pattern, str):
        raise ConfigError(f"pattern: expected a regular expression, found {pattern!r}")
    try:
        return re.compile(pattern)
    except re.error as error:
        caret = " " * (error.pos or 0) + "^"
        raise ConfigError(f"pattern: {error.msg}\n  {pattern}\n  {caret}") from error


def _copies(rename: str, alias: str) -> re.Pattern[str] | None:
    """The names that a rule gives to copies of what comes from this cluster; none where the rule does not tell."""
    if "{cluster}" not in rename:
        return None
    told = re.escape(rename).replace(re.escape("{cluster}"), re.escape(alias))
    return re.compile(told.replace(re.escape("{topic}"), ".+"))


def _checked(rename: str, alias: str) -> str:
    fields = set(_FIELDS.findall(rename)) if isinstance(rename, str) else {""}
    if not fields <= {"topic", "cluster"} or "topic" not in fields or _BRACES & set(_FIELDS.sub("", rename)):
        raise ConfigError(f"rename: expected a text with {{topic}} in it, and {{cluster}} if wanted, found {rename!r}")
    if "cluster" in fields and not alias:
        raise ConfigError("rename: {cluster} stands for what the source's cluster is called: give it as cluster=...")
    return rename
