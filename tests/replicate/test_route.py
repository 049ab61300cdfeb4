"""Which topics are copied, what their copies are called, and what is no route."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.replicate.mirror_formats import checkpoints_topic, syncs_topic
from penstock.replicate.route import SAME_NAME, Route


def route(topics: Any = (), pattern: Any = None, rename: Any = SAME_NAME, alias: str = "") -> Route:
    return Route.read(topics, pattern, rename, alias)


def test_topics_by_name_are_those_that_were_named_there_or_not() -> None:
    assert route(["b", "a"]).chosen(["a", "c"]) == ["b", "a"]
    assert route("orders").chosen([]) == ["orders"]
    assert route("__consumer_offsets").chosen([]) == ["__consumer_offsets"], "who names one means it"


def test_a_pattern_chooses_whole_names() -> None:
    chosen = route(pattern="orders.*|bills").chosen(["orders", "orders-eu", "old-orders", "bills", "bills2"])
    assert chosen == ["bills", "orders", "orders-eu"]


def test_a_pattern_never_chooses_what_systems_and_copiers_keep_for_themselves() -> None:
    internal = [
        "__consumer_offsets",
        "__transaction_state",
        "heartbeats",
        "mm2-configs.west.internal",
        "west.heartbeats.internal",
        syncs_topic("west"),
        checkpoints_topic("west"),
    ]
    assert route(pattern=".*").chosen([*internal, "orders", "_schemas", "my-heartbeats"]) == [
        "_schemas",
        "my-heartbeats",
        "orders",
    ]


def test_copies_are_called_by_the_rule() -> None:
    assert route("t").target_of("t") == "t"
    assert route("t", rename="{cluster}.{topic}", alias="west").target_of("t") == "west.t"
    assert route("t", rename="copy-of-{topic}").target_of("a{b}") == "copy-of-a{b}"
    assert route("t").keeps_names
    assert not route("t", rename="x{topic}").keeps_names


@pytest.mark.parametrize(("topics", "pattern"), [((), None), ("t", "t.*"), (["t"], "")])
def test_topics_are_named_or_chosen_and_not_both(topics: Any, pattern: str | None) -> None:
    with pytest.raises(ConfigError, match="topics: name them, or give a pattern that chooses them; one of the two"):
        route(topics, pattern)


@pytest.mark.parametrize("topics", [[""], ["t", 5], [b"t"], ""])
def test_what_is_no_name_is_refused(topics: Any) -> None:
    with pytest.raises(ConfigError, match=r"topics: (expected names, found|name them)"):
        route(topics)


def test_no_topic_is_named_twice() -> None:
    with pytest.raises(ConfigError, match=r"topics: each is named once, found \['a', 'b', 'b'\]"):
        route(["b", "a", "b"])


@pytest.mark.parametrize(
    ("pattern", "what", "at"),
    [
        ("orders-(eu", "missing ), unterminated subpattern", 7),
        ("*", "nothing to repeat", 0),
        ("a[b", "unterminated", 1),
    ],
)
def test_a_pattern_that_is_none_is_shown_with_a_caret_under_the_place(pattern: str, what: str, at: int) -> None:
    with pytest.raises(ConfigError) as raised:
        route(pattern=pattern)
    said, shown, caret = str(raised.value).split("\n")
    assert said.startswith(f"pattern: {what}")
    assert shown == f"  {pattern}"
    assert caret == " " * (2 + at) + "^"


@pytest.mark.parametrize("pattern", [5, b"t.*", ["t"]])
def test_a_pattern_is_a_text(pattern: Any) -> None:
    with pytest.raises(ConfigError, match="pattern: expected a regular expression, found"):
        route(pattern=pattern)


@pytest.mark.parametrize(
    "rename",
    [
        "copy",
        "{cluster}",
        "{topic}.{region}",
        "{topic",
        "topic}",
        "{{topic}}",
        "a{b-{topic}",
        "{topic}-}x",
        "{}",
        5,
        None,
    ],
)
def test_a_rule_that_names_nothing_is_refused(rename: Any) -> None:
    with pytest.raises(ConfigError, match=r"rename: expected a text with {topic} in it, and {cluster} if wanted"):
        route("t", rename=rename, alias="west")


def test_a_cluster_that_has_no_name_cannot_be_named() -> None:
    with pytest.raises(ConfigError, match="give it as cluster="):
        route("t", rename="{cluster}.{topic}")
