"""Patterns match what Python's own engine says they match, and take no longer for being nasty."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.groups.pattern import NODES_MAX, Pattern
from penstock.broker.groups.pattern_syntax import PatternError

PIECES = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", r"\.", "-", "[a-c0-9_.-]", "", "^", "$", r"\W"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{0,2}", "{2}", "{1,}", "*?"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
)
NAMES = st.text("ab01.-_Z", max_size=8)


@given(PIECES, st.lists(NAMES, max_size=6))
def test_a_pattern_matches_what_the_usual_engine_matches(text: str, names: list[str]) -> None:
    pattern = Pattern(text)
    for name in names:
        assert pattern.matches(name) == (re.fullmatch(text, name, re.ASCII) is not None), (text, name)


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("", [""], ["a"]),
        ("orders", ["orders"], ["orders2", "my-orders", "Orders"]),
        ("^orders-.*", ["orders-", "orders-eu"], ["old-orders-eu"]),
        ("a|bc", ["a", "bc"], ["ac", "abc"]),
        ("(?i)Orders", ["orders", "ORDERS"], ["order"]),
        ("(?i:o)rders", ["Orders", "orders"], ["ORDERS"]),
        ("a(?-i)b", ["ab"], ["aB"]),
        ("[[:alpha:]]+[[:^alpha:]]", ["ab1"], ["ab", "1"]),
        (r"[\d.]+", ["1.2"], ["a"]),
        (r"[\D]", ["a"], ["1"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("[a-]", ["-", "a"], ["b"]),
        (r"\Qa.b*\E+", ["a.b*", "a.b**"], ["axb*"]),
        (r"\x2e\x{41}", [".A"], ["xA"]),
        ("(?P<year>[0-9]{4})-(?<month>[0-9]{2})", ["2024-01"], ["24-01"]),
        ("a{,2}", ["a{,2}"], ["a", "aa"]),
        ("x{2", ["x{2"], ["xx"]),
        (r"\Aorders\z", ["orders"], ["orders "]),
        ("(a*)*", ["", "aaa"], ["b"]),
        ("(^a|b)+", ["a", "ab", "bb"], ["ba"]),
        ("(?s).", ["a"], ["ab"]),
        ("()*a(){2}", ["a"], ["", "aa"]),
        ("a(?i)b|c", ["ab", "aB", "C"], ["Ab"]),
    ],
)
def test_the_syntax_is_that_of_re2(text: str, yes: list[str], no: list[str]) -> None:
    pattern = Pattern(text)
    assert [name for name in yes if not pattern.matches(name)] == []
    assert [name for name in no if pattern.matches(name)] == []


@pytest.mark.parametrize(
    "text",
    ["(", ")", "a)", "[", "[a", "[b-a]", "*", "a**", "a+*", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)", r"(a)\1", r"\b",
     r"\pL", "\\", r"\x", r"\xzz", "a{2,1}", "a{2000}", "[[:nope:]]", "(?P<>a)", "(?Pa)", "(?", "(?q)",
     "(" * 200 + ")" * 200],
)  # fmt: skip
def test_what_is_no_pattern_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(PatternError, match="pattern"):
        Pattern(text)


@pytest.mark.parametrize("text", ["((a{1,50}){1,50}){1,50}", "a" * (NODES_MAX + 1), "(a|b|c|d){500}"])
def test_a_pattern_that_is_too_large_is_refused(text: str) -> None:
    with pytest.raises(PatternError, match="places"):
        Pattern(text)


@pytest.mark.parametrize("text", ["(a+)+b", "(a|a)*b", "(a*)*b", "(.*)(.*)(.*)(.*)[^a]", "(a?){100}a{100}c"])
def test_a_nasty_pattern_costs_no_more_than_its_places_for_each_character(text: str) -> None:
    pattern = Pattern(text)
    name = "a" * 249
    pattern.work = 0
    assert not pattern.matches(name)
    assert pattern.work <= (len(name) + 1) * (NODES_MAX + 1) * 2


def test_names_seen_alike_are_looked_up() -> None:
    pattern = Pattern("orders-[0-9]+")
    pattern.matches("orders-1234567890")
    pattern.work = 0
    assert pattern.matches("orders-0987654321")
    assert pattern.work < 4 * len("orders-0987654321")


@given(st.text(max_size=30))
def test_any_text_is_a_pattern_or_refused(text: str) -> None:
    with contextlib.suppress(PatternError):
        Pattern(text).matches("orders-1.eu")
