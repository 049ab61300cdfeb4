from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.message import Properties, PropertyValue
from penstock.produce.claims import Listing, Restriction, claim_of
from penstock.wire.entry import NO_CLAIM, PropertyClaim
from penstock.wire.property_filter import FILTER_CHARS_MAX, Clause, Match, PropertyCondition

parse = PropertyCondition.parse


@pytest.mark.parametrize(
    ("text", "matching", "others"),
    [
        ("region = eu", [{"region": "eu"}], [{"region": "us"}, {}, {"region": None}]),
        ("region != eu", [{"region": "us"}, {}, {"region": None}], [{"region": "eu"}]),
        ("region in us, eu", [{"region": "us"}, {"region": "eu"}], [{"region": "nl"}, {}]),
        ("region not in us, eu", [{"region": "nl"}, {}], [{"region": "us"}]),
        ("region is present", [{"region": ""}, {"region": "eu"}], [{}, {"region": None}, {"other": "eu"}]),
        ("region is absent", [{}, {"region": None}], [{"region": ""}]),
        ("region in us, eu; version = 1", [{"region": "us", "version": "1"}], [{"region": "us"}, {"version": "1"}]),
        ("region = 'eu; us'", [{"region": "eu; us"}], [{"region": "eu"}]),
        ('"a b" = "say \\"hi\\""', [{"a b": 'say "hi"'}], [{"a b": "say hi"}]),
        ("REGION = eu", [{"REGION": "eu"}], [{"region": "eu"}]),
        ("in in in, is; not = not", [{"in": "is", "not": "not"}], [{"in": "is"}]),
        ("region IN us , eu ;", [{"region": "eu"}], [{"region": "IN"}]),
        ("größe = groß", [{"größe": "groß"}, {"größe": "groß".encode()}], [{"größe": "groß".encode("latin-1")}]),
    ],
)
def test_what_the_language_says(text: str, matching: list[Properties], others: list[Properties]) -> None:
    condition = parse(text)
    assert [properties for properties in matching if not condition.matches(properties)] == []
    assert [properties for properties in others if condition.matches(properties)] == []


def test_no_properties_at_all_are_all_absent() -> None:
    assert parse("a is absent; b != 1").matches(None)
    assert not parse("a = 1").matches(None)


def test_bytes_that_spell_no_text_are_a_value_that_equals_no_other() -> None:
    assert parse("a is present; a != x").matches({"a": b"\xff"})
    assert not parse("a in ÿ, x").matches({"a": b"\xff"})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "at least one clause"),
        (" ; ;", "at least one clause"),
        ("region", "at its end: expected =, !=, in, not in or is"),
        ("region in", "at its end: expected a value"),
        ("region in us,", "at its end: expected a value"),
        ("region in us,; a = 1", "character 14 ('; a = 1'): expected a value"),
        ("region = us version = 1", "character 13 ('version = 1'): expected ; before the next clause"),
        ("region = New York", "expected ; before the next clause"),
        ("region = 'us", "quotes must be closed"),
        ("region ! us", "character 7 ('! us'): expected a name, a value or a sign"),
        ("region not us", "expected in, after not"),
        ("region is us", "expected present or absent"),
        ("region == us", "expected a value"),
        ("= us", "expected the name of a property"),
        ("region = us; region = eu", "'region' can never hold"),
        ("region is absent; region != us; region is present", "'region' can never hold"),
        ("a = " + "x" * FILTER_CHARS_MAX, f"at most {FILTER_CHARS_MAX} characters"),
    ],
)
def test_what_cannot_be_understood_is_told(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert told in str(caught.value)


def test_the_same_said_in_other_words_is_equal() -> None:
    one, other = parse("version = 1; region in us, eu"), parse("region in eu,us ; region != nl; version in 1")
    assert one == other
    assert hash(one) == hash(other)
    assert one != parse("version = 1")
    assert str(one) == "region in eu, us; version = 1"
    assert one.names == ("region", "version")


def same(**values: str | None) -> PropertyClaim:
    return PropertyClaim(values, {})


def listed(*values: str | None) -> PropertyClaim:
    return PropertyClaim({}, {"region": frozenset(values)})


@pytest.mark.parametrize(
    ("text", "claim", "verdict"),
    [
        ("region in us, eu", same(region="us"), Match.ALL),
        ("region in us, eu", same(region="nl"), Match.NONE),
        ("region in us, eu", same(region=None), Match.NONE),
        ("region != us", same(region=None), Match.ALL),
        ("region in us, eu", listed("us", "eu"), Match.ALL),
        ("region in us, eu", listed("us", "nl"), Match.MIXED),
        ("region in us, eu", listed("us", None), Match.MIXED),
        ("region in us, eu", listed("nl", None), Match.NONE),
        ("region in us, nl; region != us", listed("us", "eu"), Match.NONE),
        ("region in us, eu", listed(), Match.MIXED),
        ("region in us, eu", NO_CLAIM, Match.MIXED),
        ("region in us, eu; version = 1", same(region="us"), Match.MIXED),
        ("region in us, eu; version = 1", same(region="nl"), Match.NONE),
        ("region in us, eu; version = 1", same(region="us", version="1"), Match.ALL),
        ("region in us, eu; version = 1", same(region="us", version=None), Match.NONE),
        ("version = 1; region = us", PropertyClaim({"version": "1"}, {"region": frozenset(("us", "eu"))}), Match.MIXED),
        ("version = 1; region = us", PropertyClaim({"version": "2"}, {"region": frozenset(("us", "eu"))}), Match.NONE),
    ],
)
def test_a_claim_is_judged_without_its_messages(text: str, claim: PropertyClaim, verdict: Match) -> None:
    assert parse(text).judge(claim) is verdict


def test_a_value_that_the_policy_does_not_list_counts_as_absent_also_for_the_message() -> None:
    restriction = Restriction({"version": ["1", "2"]})
    properties: Properties = {"version": "5"}
    claim = claim_of(restriction, restriction.shared(properties), None)
    condition = parse("version = 5")
    assert condition.judge(claim) is Match.NONE
    assert not condition.matches(properties, claim)
    assert condition.matches(properties)


words = st.sampled_from(["a", "b", "c d", "", "é", 'q"', "is"])
clauses = st.builds(Clause, st.frozensets(words, min_size=1, max_size=3), st.booleans())
absences = st.builds(Clause, st.just(frozenset((None,))), st.booleans())


@st.composite
def conditions(draw: st.DrawFn) -> PropertyCondition:
    said = draw(st.lists(st.tuples(st.sampled_from("xyz"), clauses | absences), min_size=1, max_size=4))
    try:
        return PropertyCondition(said)
    except ConfigError:
        return PropertyCondition(said[:1])


@given(conditions())
def test_a_condition_says_itself_in_the_language(condition: PropertyCondition) -> None:
    assert parse(str(condition)) == condition


@given(st.text() | st.text(alphabet="a =!;,'\"\\in", max_size=30))
def test_whatever_is_written_is_a_condition_or_told(text: str) -> None:
    try:
        condition = parse(text)
    except ConfigError:
        return
    assert parse(str(condition)) == condition


values: st.SearchStrategy[PropertyValue] = words | words.map(str.encode) | st.just(b"\xff") | st.none()
messages = st.lists(st.dictionaries(st.sampled_from("xyz"), values), min_size=1, max_size=6)


@given(conditions(), messages)
def test_batches_are_judged_as_their_messages_are(condition: PropertyCondition, sent: list[Properties]) -> None:
    """Cut as a producer cuts them, and alone: ALL and NONE hold for each message, whichever batch it came in."""
    restriction = Restriction({"x": ["a", "b"]})
    for shared, run in groupby(sent, restriction.shared):
        batch = list(run)
        listing = Listing(["y"], 3)
        for properties in batch:
            listing.add(properties)
        claim = claim_of(restriction, shared, listing)
        verdict = condition.judge(claim)
        matches = [condition.matches(properties, claim) for properties in batch]
        assert verdict is Match.MIXED or set(matches) == {verdict is Match.ALL}
        for properties, matched in zip(batch, matches, strict=True):
            alone = Listing(["y"], 3)
            alone.add(properties)
            assert (
                condition.matches(properties, claim_of(restriction, restriction.shared(properties), alone)) is matched
            )
