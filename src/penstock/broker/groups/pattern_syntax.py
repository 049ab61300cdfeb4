r"""The syntax of patterns of topic names, read into a tree.

It is that of RE2:

| what                         | written                                                                          |
|------------------------------|----------------------------------------------------------------------------------|
| any character                | `.`                                                                              |
| one of                       | `[abc]` `[a-z]` `[^-.]` `[[:alpha:]]` `\d` `\w` `\s` and `\D` `\W` `\S`          |
| a character that has meaning | `\.` and so on, `\x2E` `\x{2E}`, `\Q...\E`                                       |
| repeated                     | `*` `+` `?` `{2}` `{2,}` `{2,5}`, also followed by `?`                           |
| one or the other, grouped    | `a|b` `(...)` `(?:...)` `(?P<name>...)` `(?<name>...)`                           |
| the name's begin and end     | `^` `\A` and `$` `\z`                                                            |
| upper and lower case alike   | `(?i)` at any place, `(?i:...)`; the flags `m`, `s` and `U` change nothing here  |

Not taken are `\b`, `\B`, `\p` and `\C`; and, as in RE2, whatever looks back or ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

DEPTH_MAX: Final = 50
REPEAT_MAX: Final = 1000


class PatternError(ValueError):
    """That is no pattern, or one that is not taken; the text says why."""


class Chars(NamedTuple):
    """A set of characters: ranges of their numbers, or all others."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False

    def holds(self, char: str) -> bool:
        """Whether the character is one of them."""
        number = ord(char)
        return any(low <= number <= high for low, high in self.ranges) is not self.negated


class Repeat(NamedTuple):
    """Something again and again; without `most` as often as you like."""

    item: Item
    least: int
    most: int | None


class Either(NamedTuple):
    """One of these."""

    items: tuple[Item, ...]


class Row(NamedTuple):
    """These, one after the other."""

    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """The begin or the end of the name."""

    at_end: bool


Item: TypeAlias = "Chars | Repeat | Either | Row | Edge"

BEGIN, END = Edge(at_end=False), Edge(at_end=True)
ANY = Chars((), negated=True)
_DIGIT = ((ord("0"), ord("9")),)
_LOWER, _UPPER = ((ord("a"), ord("z")),), ((ord("A"), ord("Z")),)
_WORD = (*_DIGIT, *_LOWER, *_UPPER, (ord("_"), ord("_")))
_SPACE = ((9, 10), (12, 13), (32, 32))
_PUNCT = ((33, 47), (58, 64), (91, 96), (123, 126))
_ESCAPED_SETS = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_ESCAPED_CHARS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_NAMED_SETS = {
    "alpha": (*_LOWER, *_UPPER),
    "digit": _DIGIT,
    "alnum": (*_DIGIT, *_LOWER, *_UPPER),
    "upper": _UPPER,
    "lower": _LOWER,
    "word": _WORD,
    "punct": _PUNCT,
    "space": ((9, 13), (32, 32)),
    "blank": ((9, 9), (32, 32)),
    "xdigit": (*_DIGIT, (65, 70), (97, 102)),
    "print": ((32, 126),),
    "graph": ((33, 126),),
    "cntrl": ((0, 31), (127, 127)),
    "ascii": ((0, 127),),
}


def _one(char: str) -> Chars:
    return Chars(((ord(char), ord(char)),))


def parse(text: str) -> Item:
    """The tree of a pattern; PatternError when the text is none."""
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._same_case = False

    def parse(self) -> Item:
        item = self._either()
        if self._at < len(self._text):
            raise self._error("a ) without its (")
        return item

    def _either(self) -> Item:
        branches = [self._row()]
        while self._take("|"):
            branches.append(self._row())
        return branches[0] if len(branches) == 1 else Either(tuple(branches))

    def _row(self) -> Item:
        items: list[Item] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            more = self._quoted() if self._take("\\Q") else self._atom()
            if more:
                items += (*more[:-1], self._repeated(more[-1]))
        return items[0] if len(items) == 1 else Row(tuple(items))

    def _quoted(self) -> list[Item]:
        end = self._text.find("\\E", self._at)
        quoted = self._text[self._at :] if end < 0 else self._text[self._at : end]
        self._at = len(self._text) if end < 0 else end + 2
        return [self._cased(_one(char)) for char in quoted]

    def _repeated(self, item: Item) -> Item:
        bounds = self._bounds()
        if bounds is None:
            return item
        self._take("?")
        if self._bounds() is not None:
            raise self._error("a repetition of a repetition")
        return Repeat(item, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        end = self._text.find("}", self._at)
        if not self._text.startswith("{", self._at) or end < 0:
            return None
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        if not (_is_number(low) and (_is_number(high) or not high)):
            return None
        least = int(low)
        most = (int(high) if high else None) if comma else least
        if max(least, most or 0) > REPEAT_MAX or (most is not None and most < least):
            raise self._error("a repetition that cannot be")
        self._at = end + 1
        return least, most

    def _atom(self) -> list[Item]:
        """What can be repeated; nothing where there were only flags."""
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return [self._cased(self._set())]
        if char == "\\":
            return [self._escape()]
        if char in "*+?":
            raise self._error("a repetition of nothing")
        plain: dict[str, Item] = {".": ANY, "^": BEGIN, "$": END}
        return [plain.get(char) or self._cased(_one(char))]

    def _group(self) -> list[Item]:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._error("too many groups in each other")
        before = self._same_case
        if self._take("?") and self._flags():
            self._depth -= 1
            return []
        item = self._either()
        if not self._take(")"):
            raise self._error("a ( without its )")
        self._same_case = before
        self._depth -= 1
        return [item]

    def _flags(self) -> bool:
        """What follows `(?`; whether that was all of the group."""
        if self._take("P<") or (self._text[self._at : self._at + 2] not in ("<=", "<!") and self._take("<")):
            end = self._text.find(">", self._at)
            if end < 0 or not self._text[self._at : end].isidentifier():
                raise self._error("a group without a proper name")
            self._at = end + 1
            return False
        value = True
        while True:
            char = self._next()
            if char == "i":
                self._same_case = value
            elif char == "-" and value:
                value = False
            elif char in ":)":
                return char == ")"
            elif char not in "msU":
                raise self._error(f"(?{char}, which is not taken")

    def _set(self) -> Chars:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        first = True
        while first or not self._take("]"):
            first = False
            if self._take("[:"):
                ranges += self._named_set()
                continue
            low = self._set_char()
            if isinstance(low, Chars):
                ranges += _spread(low)
                continue
            high = low
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                upper = self._set_char()
                if isinstance(upper, Chars) or upper < low:
                    raise self._error("a range that cannot be")
                high = upper
            ranges.append((low, high))
        return Chars(tuple(ranges), negated)

    def _set_char(self) -> int | Chars:
        char = self._next()
        if char != "\\":
            return ord(char)
        chars = self._escaped_char(self._next())
        (low, high), is_one = chars.ranges[0], len(chars.ranges) == 1 and not chars.negated
        return low if is_one and low == high else chars

    def _named_set(self) -> list[tuple[int, int]]:
        end = self._text.find(":]", self._at)
        name = self._text[self._at : end] if end >= 0 else ""
        ranges = _NAMED_SETS.get(name.removeprefix("^"))
        if ranges is None:
            raise self._error(f"a set named {name!r}")
        self._at = end + 2
        return _spread(Chars(ranges, name.startswith("^")))

    def _escape(self) -> Item:
        char = self._next()
        if char == "A":
            return BEGIN
        if char == "z":
            return END
        return self._cased(self._escaped_char(char))

    def _escaped_char(self, char: str) -> Chars:
        if char.lower() in _ESCAPED_SETS:
            return Chars(_ESCAPED_SETS[char.lower()], char.isupper())
        if char == "x":
            return _one(self._hexadecimal())
        if char in _ESCAPED_CHARS:
            return _one(_ESCAPED_CHARS[char])
        if char.isascii() and char.isalnum():
            raise self._error(f"\\{char}, which is not taken")
        return _one(char)

    def _hexadecimal(self) -> str:
        if self._take("{"):
            end = self._text.find("}", self._at)
            digits, after = self._text[self._at : max(end, self._at)], end + 1
        else:
            digits, after = self._text[self._at : self._at + 2], self._at + 2
        try:
            char = chr(int(digits, 16))
        except (ValueError, OverflowError):
            raise self._error("\\x without a character's number") from None
        self._at = after
        return char

    def _cased(self, chars: Chars) -> Chars:
        """The characters, in both cases where case does not matter."""
        if not self._same_case:
            return chars
        ranges = list(chars.ranges)
        for low, high in chars.ranges:
            for (first, last), shift in ((_LOWER[0], -32), (_UPPER[0], 32)):
                if max(low, first) <= min(high, last):
                    ranges.append((max(low, first) + shift, min(high, last) + shift))
        return Chars(tuple(ranges), chars.negated)

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise self._error("an end too early")
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, expected: str) -> bool:
        if self._text.startswith(expected, self._at):
            self._at += len(expected)
            return True
        return False

    def _error(self, found: str) -> PatternError:
        return PatternError(f"the pattern {self._text!r} has {found}, at character {self._at}")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6


def _spread(chars: Chars) -> list[tuple[int, int]]:
    """The ranges of a set, the others' if it is negated."""
    if not chars.negated:
        return list(chars.ranges)
    gaps, begin = [], 0
    for low, high in sorted(chars.ranges):
        if begin < low:
            gaps.append((begin, low - 1))
        begin = high + 1
    return [*gaps, (begin, 0x10FFFF)]
