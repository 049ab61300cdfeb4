"""The language of property filters, and what it says of a batch unopened and of one message.

    region in us, eu; version = 1; city != "New York"; debug is absent

A filter is one or more clauses, parted by `;`, which all must hold. A clause is about one property:

    name = value          it has this value
    name != value         it has another value, or none
    name in a, b          it has one of these values
    name not in a, b      it has none of these values, or is absent
    name is present       it has a value, whichever
    name is absent        it has none

Names and values may stand in single or double quotes, and must where they are empty or hold a blank or one of
`;,=!"'\\`; within quotes a backslash takes the next character as it is. Values are text: a message's bytes count as
the text they spell in UTF-8, and bytes that spell none are a value that equals no other.

Absent is a property that a message lacks, one whose value is null and, where a batch claims one value for all, one
whose value the policy does not list. So a message is judged with the claim of its batch, and a batch of one as the same
message within a batch of many. A claim is judged without its messages: ALL or NONE of them match, or only they
can tell (MIXED). Where nothing is claimed of a property the batch is MIXED and never NONE: nothing is lost because
somebody's producer claims nothing.

Pure. Must never import a wire.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.errors import ConfigError
from penstock.message import Properties, PropertyValue
from penstock.wire.entry import NO_CLAIM, PropertyClaim

FILTER_CHARS_MAX = 4096
SHOWN_CHARS = 40

_TOKEN = re.compile(
    r"""\s*(?:(?P<sign>;|,|!=|=)
        |(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
        |(?P<bare>[^\s;,=!"'\\]+))""",
    re.VERBOSE | re.DOTALL,
)
_BARE = re.compile(r"""[^\s;,=!"'\\()]+""")
"""What is written without quotes: nothing with parentheses, which a setting that holds the filter has around it."""


class Match(enum.Enum):
    """How many of a batch's messages match."""

    ALL = "all"
    NONE = "none"
    MIXED = "mixed"


class PropertyCondition:
    """A filter that was read. Equal to every other that says the same of the same properties."""

    __slots__ = ("_clauses", "_text")

    def __init__(self, clauses: Iterable[tuple[str, Clause]]) -> None:
        joined: dict[str, Clause] = {}
        for name, clause in clauses:
            joined[name] = joined[name].both(clause) if name in joined else clause
        for name, clause in joined.items():
            if clause.is_impossible():
                raise ConfigError(f"what the filter says of {name!r} can never hold, so that nothing would match")
        if not joined:
            raise ConfigError("a property filter has at least one clause, such as region in us, eu")
        self._clauses = tuple(sorted(joined.items()))
        self._text = "; ".join(text for name, clause in self._clauses for text in clause.told(name))

    @classmethod
    def parse(cls, text: str) -> PropertyCondition:
        """Read a filter; ConfigError tells where it cannot be understood."""
        if len(text) > FILTER_CHARS_MAX:
            raise ConfigError(f"a property filter has at most {FILTER_CHARS_MAX} characters, not {len(text)}")
        return cls(_Parser(text).clauses())

    @property
    def names(self) -> tuple[str, ...]:
        """The properties it looks at."""
        return tuple(name for name, _ in self._clauses)

    def judge(self, claim: PropertyClaim) -> Match:
        """How many messages of a batch match, as far as its claim tells."""
        verdict = Match.ALL
        for name, clause in self._clauses:
            if name in claim.same:
                if not clause.holds(claim.same[name]):
                    return Match.NONE
                continue
            holds = {clause.holds(value) for value in claim.listed.get(name, ())}
            if holds == {False}:
                return Match.NONE
            if holds != {True}:
                verdict = Match.MIXED
        return verdict

    def matches(self, properties: Properties | None, claim: PropertyClaim = NO_CLAIM) -> bool:
        """Whether a message matches that came in a batch with this claim."""
        for name, clause in self._clauses:
            if name in claim.same:
                value: object = claim.same[name]
            else:
                value = _spelled(properties.get(name)) if properties else None
            if not clause.holds(value):
                return False
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PropertyCondition) and self._clauses == other._clauses

    def __hash__(self) -> int:
        return hash(self._clauses)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"PropertyCondition({self._text!r})"


class Clause(NamedTuple):
    """What is said of one property: that its value is among these or, negated, that it is not. None is absent."""

    values: frozenset[str | None]
    negated: bool = False

    def holds(self, value: object) -> bool:
        """Whether it holds for this value."""
        return (value in self.values) is not self.negated

    def both(self, other: Clause) -> Clause:
        """What holds when both do."""
        if self.negated and other.negated:
            return Clause(self.values | other.values, negated=True)
        if self.negated:
            return Clause(other.values - self.values)
        return Clause(self.values - other.values if other.negated else self.values & other.values)

    def is_impossible(self) -> bool:
        """Whether it can hold for no value."""
        return not self.values and not self.negated

    def told(self, name: str) -> Iterator[str]:
        """The clauses that say it, in the language."""
        name = _quoted(name)
        texts = sorted(value for value in self.values if value is not None)
        if None in self.values:
            yield f"{name} is {'present' if self.negated else 'absent'}"
        if len(texts) == 1:
            yield f"{name} {'!=' if self.negated else '='} {_quoted(texts[0])}"
        elif texts:
            yield f"{name} {'not in' if self.negated else 'in'} {', '.join(map(_quoted, texts))}"


class _Token(NamedTuple):
    sign: str
    text: str
    quoted: bool
    at: int


_END = ""
_UNREADABLE = object()
_ABSENT: frozenset[str | None] = frozenset((None,))


class _Parser:
    """Reads the clauses of one text, left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._cut())
        self._at = 0

    def clauses(self) -> Iterator[tuple[str, Clause]]:
        while self._token().sign or self._token().at < len(self._text):
            if self._take(";"):
                continue
            yield self._word("the name of a property"), self._said()
            if self._token().at < len(self._text) and not self._take(";"):
                self._fail("; before the next clause")

    def _said(self) -> Clause:
        if self._take("="):
            return Clause(frozenset((self._word("a value"),)))
        if self._take("!="):
            return Clause(frozenset((self._word("a value"),)), negated=True)
        if self._keyword("in"):
            return Clause(frozenset(self._values()))
        if self._keyword("not"):
            if not self._keyword("in"):
                self._fail("in, after not")
            return Clause(frozenset(self._values()), negated=True)
        if not self._keyword("is"):
            self._fail("=, !=, in, not in or is")
        if self._keyword("present"):
            return Clause(_ABSENT, negated=True)
        if not self._keyword("absent"):
            self._fail("present or absent")
        return Clause(_ABSENT)

    def _values(self) -> Iterator[str]:
        yield self._word("a value")
        while self._take(","):
            yield self._word("a value")

    def _word(self, expected: str) -> str:
        token = self._token()
        if token.sign or token.at == len(self._text):
            self._fail(expected)
        self._at += 1
        return token.text

    def _take(self, sign: str) -> bool:
        taken = self._token().sign == sign
        self._at += taken
        return taken

    def _keyword(self, word: str) -> bool:
        token = self._token()
        taken = not token.sign and not token.quoted and token.text.lower() == word
        self._at += taken
        return taken

    def _token(self) -> _Token:
        return self._tokens[self._at]

    def _cut(self) -> Iterator[_Token]:
        at, end = 0, len(self._text.rstrip())
        while at < end:
            found = _TOKEN.match(self._text, at)
            if found is None:
                raise self._error(at, "expected a name, a value or a sign; quotes must be closed")
            at = found.end()
            sign, quoted, bare = found.group("sign", "quoted", "bare")
            text = re.sub(r"\\(.)", r"\1", quoted[1:-1], flags=re.DOTALL) if quoted else bare or ""
            yield _Token(sign or "", text, quoted is not None, found.start(found.lastgroup or 0))
        yield _Token(_END, "", quoted=False, at=len(self._text))

    def _fail(self, expected: str) -> None:
        raise self._error(self._token().at, f"expected {expected}")

    def _error(self, at: int, what: str) -> ConfigError:
        """What is wrong, with the text up to there and a caret under the place."""
        rest = self._text[at : at + SHOWN_CHARS].strip()
        place = f"character {at + 1} ({rest!r})" if rest else "at its end"
        begin = max(0, at - SHOWN_CHARS)
        shown = self._text[begin : at + SHOWN_CHARS].replace("\n", " ")
        return ConfigError(f"property filter, {place}: {what}\n  {shown}\n  {' ' * (at - begin)}^")


def _quoted(text: str) -> str:
    if _BARE.fullmatch(text):
        return text
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _spelled(value: PropertyValue) -> object:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return _UNREADABLE
