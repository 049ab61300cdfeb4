"""A property filter by columns, compared with the same filter message by message."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.consume.sieve import matching
from penstock.wire.columns import PROPERTIES
from penstock.wire.entry import NO_CLAIM, PropertyClaim
from penstock.wire.property_filter import PropertyCondition

NAMES = st.sampled_from(["region", "version", "ü", ""])
VALUES = st.sampled_from([None, b"us", b"eu", b"1", b"", b"\xff", "ü".encode()])
ROWS = st.lists(st.lists(st.tuples(NAMES, VALUES), max_size=4), max_size=12)
FILTERS = [
    "region = us",
    "region != us",
    "region in us, eu; version = 1",
    "region not in us, eu",
    "region is present",
    'version is absent; "ü" != "ü"',
    'region = ""',
    "other is absent",
    "other = 1",
]
CLAIMS = [
    NO_CLAIM,
    PropertyClaim({"region": "us"}),
    PropertyClaim({"region": None}),
    PropertyClaim({}, {"version": frozenset({"1"})}),
]


@pytest.mark.parametrize("text", FILTERS)
@given(rows=ROWS, claim=st.sampled_from(CLAIMS))
def test_each_message_is_judged_as_if_alone(text: str, rows: list[Any], claim: PropertyClaim) -> None:
    condition = PropertyCondition.parse(text)
    mask = matching(condition, claim, pa.array(rows, PROPERTIES))
    assert mask.tolist() == [condition.matches(dict(row), claim) for row in rows]


def test_a_combination_of_values_is_judged_once() -> None:
    class Counting(PropertyCondition):
        asked = 0

        def matches(self, properties: Any, claim: PropertyClaim = NO_CLAIM) -> bool:
            type(self).asked += 1
            return super().matches(properties, claim)

    condition = Counting.parse("region = us; version = 1")
    rows = [[("region", b"us"), ("version", b"%d" % (i % 2))] for i in range(10_000)]
    assert matching(condition, NO_CLAIM, pa.array(rows, PROPERTIES)).sum() == 5000
    assert Counting.asked == 2
