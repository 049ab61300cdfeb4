"""The judge of both sides: what differs is found, what is listed is allowed, what is stale is told."""

from __future__ import annotations

import re
from pathlib import Path

from tests.compat.differences import Difference, between, judge, listed

HERE = Path(__file__).resolve().parent


def row(place: str, kafka: str = '"a"', penstock: str = '"b"', case: str = "test_x") -> Difference:
    return Difference(case, place, kafka, penstock, "because")


def test_equal_outcomes_do_not_differ() -> None:
    assert between({"a": [1, {"b": None}], "c": {}}, {"c": {}, "a": [1, {"b": None}]}) == []


def test_differences_are_found_where_they_are() -> None:
    found = between({"a": [1, 2], "b": {"c": "x"}, "d": []}, {"a": [1, 3, 4], "b": {"c": "x", "e": 5}, "d": [6]})
    assert [str(each) for each in found] == [
        "a.1: Kafka 2, Penstock 3",
        "a.2: Kafka absent, Penstock 4",
        "b.e: Kafka absent, Penstock 5",
        "d: Kafka [], Penstock absent",
        "d.0: Kafka absent, Penstock 6",
    ]


def test_listed_differences_are_allowed_for_their_test_only() -> None:
    one, other = {"a": {"b": "a"}}, {"a": {"b": "b"}}
    assert judge("test_x", one, other, [row("a.b")]) == []
    assert judge("test_x", one, other, [row("a.*", "*", "*")]) == []
    assert judge("test_x", one, other, [row("a.b", case="test_y")]) == [
        'differs, and is not listed: a.b: Kafka "a", Penstock "b"'
    ]
    assert len(judge("test_x", one, other, [row("a.b", penstock='"c"')])) == 2


def test_a_listed_difference_that_is_none_any_more_is_told() -> None:
    same = {"a": "a"}
    assert judge("test_x", same, same, [row("a")]) == ['is listed, and does not differ so: a: Kafka "a", Penstock "b"']


def test_the_document_is_read_as_data(tmp_path: Path) -> None:
    document = tmp_path / "c.md"
    document.write_text(
        "# T\n\n| test | where | Kafka | here | why |\n|---|---|---|---|---|\n"
        '| `test_x[a, b]` | `a.*.c` | `{"x": 1}` | `*` | no `compaction` here |\n'
    )
    assert listed(document) == [Difference("test_x[a, b]", "a.*.c", '{"x": 1}', "*", "no `compaction` here")]


def test_every_listed_difference_belongs_to_a_test_that_exists() -> None:
    tests = {name for file in HERE.glob("test_*.py") for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)}
    assert [row.case for row in listed() if row.case.partition("[")[0] not in tests] == []


def test_every_row_of_the_document_that_looks_like_a_difference_is_one() -> None:
    text = (HERE.parents[1] / "docs" / "compatibility.md").read_text()
    assert len(listed()) == len(re.findall(r"^\| `test_", text, re.M))
