from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from penstock.message import Properties, PropertyValue
from penstock.produce.claims import Listing, Restriction, claim_of
from penstock.wire.entry import Scope

RESTRICTED = {"region": ["us", "eu"], "version": ["1", "2"]}

# The example of the proposal: eight messages, five batches.
EXAMPLE: list[Properties] = [
    {"region": "eu"},
    {"region": "eu"},
    {"region": "eu", "version": "1", "tag": "a"},
    {"region": "eu", "version": "1"},
    {"region": "us", "version": "1"},
    {"region": "us", "version": "2"},
    {"region": "us", "version": "5"},
    {"region": "us", "version": "6"},
]


def test_eight_messages_of_the_example_make_five_batches() -> None:
    restriction = Restriction(RESTRICTED)
    batches = [(restriction.claim(shared), len(list(run))) for shared, run in groupby(EXAMPLE, restriction.shared)]
    assert batches == [
        ({"region": "eu", "version": None}, 2),
        ({"region": "eu", "version": "1"}, 2),
        ({"region": "us", "version": "1"}, 1),
        ({"region": "us", "version": "2"}, 1),
        ({"region": "us", "version": None}, 2),
    ]


def test_a_value_outside_the_list_counts_as_absent() -> None:
    restriction = Restriction(RESTRICTED)
    assert restriction.shared({"region": "mars"}) == restriction.shared({}) == restriction.shared(None) == (None, None)


def test_text_and_its_bytes_are_the_same_value() -> None:
    restriction = Restriction({"region": ["eu", "ö"]})
    assert restriction.shared({"region": b"eu"}) == restriction.shared({"region": "eu"}) == ("eu",)
    assert restriction.shared({"region": "ö".encode()}) == ("ö",)


def test_the_property_that_parts_two_messages_is_named() -> None:
    restriction = Restriction(RESTRICTED)
    one, other = (
        restriction.shared({"region": "us", "version": "1"}),
        restriction.shared({"region": "us", "version": "2"}),
    )
    assert restriction.differing(one, other) == ["version"]


values = st.sampled_from([None, "oslo", "rome", "bonn", b"oslo", b"\xff"])


@given(st.lists(st.dictionaries(st.sampled_from(["city", "street"]), values)), st.integers(1, 4))
def test_a_listing_holds_every_value_or_says_nothing(messages: list[dict[str, PropertyValue]], most: int) -> None:
    listing = Listing(["city", "street"], most)
    for properties in messages:
        listing.add(properties)
    claim = claim_of(None, (), listing)
    for name in ("city", "street"):
        occurred = {value if (value := message.get(name)) != b"oslo" else "oslo" for message in messages}
        if b"\xff" in occurred or len(occurred) > most:
            assert claim.scope(name) is Scope.UNKNOWN
        else:
            assert claim.values(name) == frozenset(occurred)


def test_a_claim_tells_how_far_it_reaches() -> None:
    restriction, listing = Restriction(RESTRICTED), Listing(["city"], 4)
    listing.add({"city": "oslo"})
    listing.add(None)
    claim = claim_of(restriction, restriction.shared({"region": "eu"}), listing)
    assert [claim.scope(name) for name in ("region", "version", "city", "street")] == [
        Scope.FOR_ALL,
        Scope.FOR_ALL,
        Scope.LISTED,
        Scope.UNKNOWN,
    ]
    assert claim.values("city") == frozenset({"oslo", None})
