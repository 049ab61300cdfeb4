from __future__ import annotations

import pytest

from penstock.errors import BusyError
from penstock.net.backoff import Backoff
from penstock.net.lookups import LOOK_UP_TOPICS_MAX, LookUps
from penstock.wire.protocol import LookUp


def make(topics_max: int = 10_000) -> LookUps:
    """Pauses of 0.1, 0.2, 0.4, 0.8, 1.0 seconds; what is known is old after 300."""
    return LookUps(Backoff(0.1, 1.2, lambda: 0.5), 300.0, topics_max)


def of(*topics: str, create: bool = False) -> LookUp:
    return LookUp(frozenset(topics), create)


def test_nothing_is_asked_when_nothing_is_wanted() -> None:
    lookups = make()
    assert (lookups.next(0.0), lookups.next_deadline()) == (None, None)


def test_a_new_topic_is_asked_for_at_once_and_one_look_up_is_outstanding_at_a_time() -> None:
    lookups = make()
    lookups.want("a", 0.0)
    assert lookups.next(0.0) == of("a")
    lookups.want("b", 0.0)
    lookups.want("c", 0.0)
    lookups.want("b", 0.0)
    assert (lookups.next(0.0), lookups.next_deadline()) == (None, None)
    lookups.answered([], 0.0)
    assert lookups.next(0.0) == of("b", "c")


def test_a_topic_that_is_not_settled_is_asked_for_again_after_pauses_that_grow() -> None:
    lookups = make()
    lookups.want("a", 0.0)
    assert lookups.next(0.0) == of("a")
    now, asked_at = 0.0, []
    for _ in range(5):
        lookups.answered(["a"], now)
        due = lookups.next_deadline()
        assert due is not None
        assert lookups.next(due - 0.001) is None
        assert lookups.next(due) == of("a")
        asked_at.append(due)
        now = due
    assert asked_at == pytest.approx([0.1, 0.3, 0.7, 1.5, 2.5])


def test_success_starts_the_pauses_anew() -> None:
    lookups = make()
    lookups.want("a", 0.0)
    lookups.next(0.0)
    for _ in range(5):
        lookups.answered(["a"], 0.0)
    lookups.answered([], 10.0)
    lookups.refresh("a")
    assert lookups.next_deadline() == pytest.approx(10.1)


def test_a_refresh_that_is_asked_for_comes_no_sooner_than_the_pause() -> None:
    lookups = make()
    lookups.want("a", 0.0)
    lookups.want("b", 0.0)
    lookups.next(0.0)
    lookups.answered([], 0.0)
    lookups.refresh("a")
    lookups.refresh("unheard of")
    assert lookups.next(0.09) is None
    assert lookups.next(0.1) == of("a")
    lookups.answered([], 0.1)
    lookups.refresh()
    assert lookups.next(0.3) == of("a", "b")


def test_a_new_topic_does_not_wait_for_the_pause_of_others() -> None:
    lookups = make()
    lookups.want("a", 0.0)
    lookups.next(0.0)
    lookups.answered(["a"], 0.0)
    lookups.want("b", 0.01)
    assert lookups.next(0.01) == of("b")


def test_after_a_failed_look_up_everybody_waits() -> None:
    lookups = make()
    lookups.want("a", 0.0)
    lookups.next(0.0)
    lookups.want("b", 0.0)
    lookups.failed(0.0)
    assert lookups.next_deadline() == pytest.approx(0.1)
    assert lookups.next(0.05) is None
    assert lookups.next(0.1) == of("a", "b")
    lookups.failed(0.1)
    assert lookups.next_deadline() == pytest.approx(0.3)


def test_brokers_alone_can_be_asked_for() -> None:
    lookups = make()
    lookups.refresh()
    assert lookups.next(0.0) == of()
    lookups.answered([], 0.0)
    assert lookups.next_deadline() is None


def test_what_is_old_is_asked_for_again_even_while_new_topics_keep_coming() -> None:
    lookups = make()
    lookups.want("a", 0.0)
    lookups.next(0.0)
    lookups.answered([], 0.0)
    for second in range(1, 300):
        lookups.want("a", second)
        lookups.want(f"t{second}", second)
        assert lookups.next(second) == of(f"t{second}")
        lookups.answered([], second)
    assert lookups.next_deadline() == 300.0
    renewed = lookups.next(300.0)
    assert renewed is not None
    assert renewed.topics is not None
    assert len(renewed.topics) == 300


def test_topics_that_nobody_uses_are_forgotten() -> None:
    lookups = make()
    lookups.want("used", 0.0)
    lookups.want("unused", 0.0)
    lookups.next(0.0)
    lookups.answered([], 0.0)
    lookups.want("used", 200.0)
    lookups.next(300.0)
    assert lookups.answered(["unused"], 300.0) == ["unused"]
    assert list(lookups.topics) == ["used"]
    lookups.want("unused", 301.0)
    assert lookups.next(301.0) == of("unused")


def test_a_topic_forgotten_while_asked_for_is_not_asked_for_again() -> None:
    lookups = make()
    lookups.want("a", 0.0)
    lookups.next(0.0)
    lookups.forget("a")
    lookups.answered(["a"], 0.0)
    lookups.want("b", 0.0)
    assert lookups.next(5.0) == of("b")
    lookups.forget("b")
    lookups.failed(5.0)
    assert lookups.next(9.0) == of()


def test_the_number_of_topics_is_limited() -> None:
    lookups = make(topics_max=2)
    lookups.want("a", 0.0)
    lookups.want("b", 0.0)
    lookups.want("a", 0.0)
    with pytest.raises(BusyError, match="2 topics are in use"):
        lookups.want("c", 0.0)
    lookups.forget("a")
    lookups.want("c", 0.0)


def test_topics_that_may_be_created_and_others_take_turns() -> None:
    lookups = make()
    lookups.want("a", 0.0)
    lookups.want("b", 0.0, create=True)
    now, asked = 0.0, []
    for _ in range(4):
        look_up = lookups.next(now)
        assert look_up is not None
        asked.append(look_up)
        lookups.answered(list(look_up.topics or ()), now)
        now += 10
    assert asked == [of("b", create=True), of("a"), of("b", create=True), of("a")]


def test_wanting_to_create_a_topic_that_was_only_looked_for_asks_again() -> None:
    lookups = make()
    lookups.want("a", 0.0)
    lookups.next(0.0)
    lookups.answered([], 0.0)
    lookups.want("a", 1.0, create=True)
    assert lookups.next(1.0) == of("a", create=True)


def test_one_look_up_asks_for_so_many_topics_and_all_have_their_turn() -> None:
    lookups = make()
    names = [f"t{number}" for number in range(2 * LOOK_UP_TOPICS_MAX + 5)]
    for name in names:
        lookups.want(name, 0.0)
    now = 0.0
    seen: set[str] = set()
    for _ in range(3):
        look_up = lookups.next(now)
        assert look_up is not None
        assert len(look_up.topics or ()) <= LOOK_UP_TOPICS_MAX
        seen |= look_up.topics or set()
        lookups.answered(list(look_up.topics or ()), now)
        now += 10
    assert seen == set(names)


def test_it_tells_its_state() -> None:
    lookups = make()
    lookups.want("a", 0.0)
    assert repr(lookups) == ("<LookUps idle, 1 topics, 1 new, 0 stale, <Backoff after 0 failures, 0.1 to 1.2 s>>")


def test_a_topic_that_is_kept_is_not_forgotten() -> None:
    lookups = make()
    lookups.want("a", 0.0)
    lookups.want("b", 0.0, keep=True)
    lookups.want("b", 0.0)
    lookups.next(0.0)
    lookups.answered([], 0.0)
    late = lookups.next_deadline()
    assert late is not None
    lookups.next(late)
    assert lookups.answered([], late) == ["a"]
    assert list(lookups.topics) == ["b"]
    lookups.forget("b")
    assert not lookups.topics
