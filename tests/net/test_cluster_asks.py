from __future__ import annotations

import pytest

from penstock.config import BatchIo
from penstock.errors import BusyError, ConnectionLostError, NotSentError, RefusedError
from penstock.net import asks
from penstock.net.asks import Whom
from penstock.net.pipeline import Lost
from penstock.wire.protocol import (
    Answered,
    ClusterView,
    LookUp,
    Partition,
)

from .memory import Say, World
from .worlds import NODES, ONE, SEED, TWO, broker, learn, make_world


def test_anybody_is_who_has_least_to_do() -> None:
    world = learn(make_world())
    world.connection(1)
    world.connection(2)
    for endpoint in (ONE, TWO):
        broker(world, endpoint).held = []
        broker(world, endpoint).asked.clear()
    for number in range(6):
        world.cluster.ask(Say(b"%d" % number), number, Whom.ANYBODY, world.now)
    world.settle()
    assert [len(broker(world, endpoint).asked) for endpoint in (ONE, TWO)] == [3, 3]


def test_asks_reach_the_controller_a_leader_or_a_broker_by_its_id() -> None:
    world = make_world()
    world.cluster.ask(Say(b"c"), "controller", Whom.CONTROLLER, world.now)
    world.cluster.ask(Say(b"l"), "leader", Partition("orders", 1), world.now)
    world.run(lambda: world.outcomes("controller") and world.outcomes("leader"))
    world.cluster.ask(Say(b"n"), "node", 2, world.now)
    world.run(lambda: world.outcomes("node"))
    said = {end: [say for say in broker(world, end).asked if isinstance(say, Say)] for end in (ONE, TWO)}
    assert said == {ONE: [Say(b"c")], TWO: [Say(b"l"), Say(b"n")]}


def test_where_no_controller_is_named_anybody_is_asked() -> None:
    world = make_world(ClusterView("toy-1", NODES, {}, controller=None))
    world.cluster.ask(Say(b"c"), "controller", Whom.CONTROLLER, world.now)
    world.run(lambda: world.outcomes("controller"), seconds=1)
    assert Say(b"c") in broker(world, ONE).asked


def test_an_ask_to_anybody_needs_no_metadata() -> None:
    world = make_world()
    world.cluster.ask(Say(b"a"), "token", Whom.ANYBODY, world.now)
    world.run(lambda: world.outcomes("token"))
    assert broker(world, ONE).asked == [LookUp(frozenset()), Say(b"a")]


def test_an_ask_after_the_turn_does_not_wait_for_something_to_happen() -> None:
    world = learn(make_world())
    world.settle()
    world.cluster.ask(Say(b"a"), "token", Whom.ANYBODY, world.now)
    due = world.cluster.before_poll()
    assert due is not None
    assert due <= world.now
    world.settle()
    assert world.outcomes("token")
    due = world.cluster.before_poll()
    assert due is None or due > world.now


def test_an_ask_that_reaches_nobody_is_lost_and_says_why() -> None:
    world = World([SEED], [])
    world.cluster.ask(Say(b"a"), "token", Whom.ANYBODY, world.now)
    world.run(lambda: world.outcomes("token"), seconds=31)
    [lost] = world.outcomes("token")
    assert isinstance(lost, Lost)
    assert isinstance(lost.error, NotSentError)
    assert str(lost.error).startswith("Say for anybody was never sent: toy://here cannot be reached: tried seed:1 for")
    assert world.now == pytest.approx(1030.0)


@pytest.mark.parametrize(
    ("target", "story"),
    [
        (Partition("nowhere", 0), "Say for nowhere-0 was never sent: toy://here does not know the topic nowhere"),
        (9, "Say for broker 9 was never sent: toy://here had no connection with room for it in time"),
    ],
)
def test_an_ask_for_somebody_unknown_is_lost_in_time(target: Partition | int, story: str) -> None:
    world = make_world()
    world.cluster.ask(Say(b"a"), "token", target, world.now)
    world.run(lambda: world.outcomes("token"), seconds=31)
    [lost] = world.outcomes("token")
    assert isinstance(lost, Lost)
    assert str(lost.error) == story


def test_an_ask_that_was_certainly_not_sent_is_sent_again() -> None:
    world = learn(make_world())
    pipeline = world.connection(1)
    stream = broker(world, ONE).streams[0]
    stream.faults.stuck = True
    world.cluster.ask(Say(b"a"), "token", 1, world.now)
    world.settle()
    assert pipeline.in_flight == 1
    stream.ended = True
    world.run(lambda: world.outcomes("token"))
    assert world.outcomes("token") == [Answered("token", b"a")]


def test_an_ask_that_may_have_been_done_is_told_as_lost() -> None:
    world = learn(make_world())
    broker(world, ONE).held = []
    world.cluster.ask(Say(b"a"), "token", 1, world.now)
    world.settle()
    broker(world, ONE).streams[0].ended = True
    world.run(lambda: world.outcomes("token"))
    [lost] = world.outcomes("token")
    assert isinstance(lost, Lost)
    assert type(lost.error) is ConnectionLostError


def test_an_ask_that_the_wire_refuses_is_answered_so() -> None:
    world = make_world()
    world.cluster.ask(Say(b"unspeakable"), "token", Whom.ANYBODY, world.now)
    world.run(lambda: world.outcomes("token"))
    [answered] = world.outcomes("token")
    assert isinstance(answered, Answered)
    assert isinstance(answered.answer, RefusedError)


def test_the_number_of_asks_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asks, "ASKS_MAX", 2)
    world = make_world()
    for number in range(2):
        world.cluster.ask(Say(), number, Whom.ANYBODY, world.now)
    with pytest.raises(BusyError, match="2 requests wait for toy://here"):
        world.cluster.ask(Say(), 3, Whom.ANYBODY, world.now)


def test_flush_opens_the_gates() -> None:
    world = learn(make_world())
    world.connection(2).submit(Say(b"x"), "token", world.now, BatchIo(delay_ms=60_000))
    world.settle()
    assert not world.outcomes("token")
    world.cluster.flush(world.now)
    world.settle()
    assert world.outcomes("token") == [Answered("token", b"x")]


def test_close_gives_everybody_an_outcome_and_leaves_nothing_open() -> None:
    world = learn(make_world())
    broker(world, TWO).held = []
    world.connection(2).submit(Say(b"x"), "written", world.now)
    world.connection(2).submit(Say(b"x"), "waiting", world.now, BatchIo(delay_ms=60_000))
    world.cluster.ask(Say(b"x"), "asked", 9, world.now)
    world.cluster.want("late", world.now)
    world.settle()
    world.events += world.cluster.close(world.now)
    kinds = {token: type(world.outcomes(token)[0].error) for token in ("written", "waiting", "asked")}  # type: ignore[union-attr]
    assert kinds == {"written": ConnectionLostError, "waiting": NotSentError, "asked": NotSentError}
    assert all(stream.closed for stream in world.network.streams)
    assert (world.memory.used, world.poller.watched) == (0, {})
    with pytest.raises(NotSentError, match="is closed"):
        world.cluster.ask(Say(), "late", Whom.ANYBODY, world.now)
    assert world.cluster.connection(1, world.now) is None
    opened = len(world.network.opened)
    assert world.turn() is None
    assert len(world.network.opened) == opened


def test_what_is_ready_elsewhere_is_passed_over() -> None:
    one, other = learn(make_world()), learn(make_world())
    pipeline = other.connection(1)
    assert one.cluster.turn([(pipeline, True, True)], one.now) == []  # type: ignore[list-item]
