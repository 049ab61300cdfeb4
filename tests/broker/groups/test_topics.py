"""Patterns are matched a piece at a time, and again when topics come."""

from __future__ import annotations

import pytest

from penstock.broker.groups import topics as module
from penstock.broker.groups.topics import TopicWatch
from penstock.broker.refusals import Refusal, Refused
from tests.broker.groups.kit import FakeTopics


def test_a_pattern_that_takes_long_is_matched_in_later_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORK_MAX", 100)
    topics = FakeTopics()
    for number in range(50):
        topics.make(f"topic-{number:02}", 1)
    watch = TopicWatch(topics)
    watch.hold("topic-[0-4].")
    assert watch.matching("topic-[0-4].") is None
    version, turns = watch.version, 1
    while watch.turn():
        assert watch.matching("topic-[0-4].") is None
        turns += 1
        assert turns < 100
    assert len(watch.matching("topic-[0-4].") or ()) == 50
    assert turns > 3
    assert watch.version > version


def test_a_new_topic_is_matched_in_a_turn() -> None:
    topics = FakeTopics()
    watch = TopicWatch(topics)
    watch.hold("a.*")
    version = watch.version
    for name in ("ab", "b"):
        watch.created(topics.make(name, 1))
    assert watch.version > version
    assert not watch.turn()
    assert watch.matching("a.*") == frozenset({"ab"})
    watch.deleted(topics.drop("ab"))
    assert watch.matching("a.*") == frozenset()


def test_a_topic_that_is_gone_before_it_was_matched_does_not_match() -> None:
    topics = FakeTopics()
    watch = TopicWatch(topics)
    watch.hold("a.*")
    watch.created(topics.make("ab", 1))
    watch.deleted(topics.drop("ab"))
    watch.turn()
    assert watch.matching("a.*") == frozenset()


def test_a_pattern_is_watched_as_long_as_somebody_has_it() -> None:
    watch = TopicWatch(FakeTopics())
    watch.hold("a")
    watch.hold("a")
    watch.release("a")
    assert watch.matching("a") == frozenset()
    watch.release("a")
    assert repr(watch) == "<TopicWatch of 0 patterns, 0 unfinished>"


def test_what_is_no_pattern_or_one_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATTERNS_MAX", 1)
    watch = TopicWatch(FakeTopics())
    with pytest.raises(Refused, match="without its") as caught:
        watch.check("(")
    assert caught.value.reason is Refusal.BAD_PATTERN
    watch.check("a")
    watch.hold("a")
    watch.check("a")
    with pytest.raises(Refused, match="already"):
        watch.check("b")


def test_a_pattern_that_is_given_up_before_it_was_matched_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORK_MAX", 1)
    topics = FakeTopics()
    for number in range(5):
        topics.make(f"topic-{number}", 1)
    watch = TopicWatch(topics)
    watch.hold("topic.*")
    assert watch.turn()
    watch.release("topic.*")
    assert not watch.turn()


def test_all_patterns_together_get_one_piece_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORK_MAX", 60)
    topics = FakeTopics()
    for number in range(30):
        topics.make(f"topic-{number:02}", 1)
    watch = TopicWatch(topics)
    texts = [f"topic-{number}." for number in range(10)]
    for text in texts:
        watch.hold(text)
    patterns = [watch._watches[text].pattern for text in texts]
    is_left = True
    while is_left:
        before = sum(pattern.work for pattern in patterns)
        is_left = watch.turn()
        assert sum(pattern.work for pattern in patterns) - before <= 60 + 100  # one name more than fits, at most
    assert [len(watch.matching(text) or ()) for text in texts] == [10, 10, 10, *[0] * 7]
