from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from penstock.errors import BusyError, DeniedError, RefusedError, TimedOutError, UnknownTopicError
from penstock.net.cluster import NetParts
from penstock.net.links import Connected, Disconnected, Unreachable
from penstock.net.lookups import TOPICS_MAX
from penstock.net.pipeline import Lost
from penstock.net.topology import TopicChanged, TopicFailed
from penstock.wire.protocol import (
    Answered,
    LookUp,
    Partition,
    PartitionView,
    Ready,
    TopicView,
)

from .memory import Faults, MemoryStream, Say, ToyBroker, World, cluster_view
from .worlds import NODES, ONE, ORDERS, SECOND_SEED, SEED, THREE, TWO, VIEW, broker, learn, make_world, refused, show


def test_nothing_is_opened_before_somebody_wants_something() -> None:
    world = make_world()
    assert world.turn() is None
    assert world.network.opened == []


def test_a_wanted_topic_becomes_known() -> None:
    world = learn(make_world())
    assert world.cluster.partitions("orders") == 2
    assert [world.cluster.leader(Partition("orders", number)) for number in (0, 1)] == [1, 2]
    assert world.events == [Connected(1, Ready({})), TopicChanged("orders", 2)]


def test_a_connection_is_opened_on_first_use_of_its_broker_only() -> None:
    world = learn(make_world())
    world.settle()
    assert world.network.opened == [ONE]
    assert world.connection(1) is not world.connection(2)
    assert world.network.opened == [ONE, TWO]
    assert world.connection(2) is world.connection(2)
    assert world.network.opened == [ONE, TWO]


def test_requests_submitted_to_a_connection_come_back_as_events() -> None:
    world = learn(make_world())
    world.connection(2).submit(Say(b"hello"), "token", world.now)
    world.run(lambda: world.outcomes("token"))
    assert world.outcomes("token") == [Answered("token", b"hello")]


def test_a_turn_reads_all_connections_then_writes_then_asks_for_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    world = learn(make_world())
    for node in (1, 2):
        broker(world, NODES[node]).held = []
        world.connection(node).submit(Say(b"answered"), ("answered", node), world.now)
    for stream in world.network.streams:
        stream.faults.stuck = True
    for node in (1, 2):
        world.connection(node).submit(Say(b"written"), ("written", node), world.now)
    world.settle()
    steps: list[tuple[str, str]] = []
    receive, send = MemoryStream.receive_into, MemoryStream.send

    def receiving(stream: MemoryStream, room: memoryview) -> int | None:
        steps.append(("read", stream.endpoint.host))
        return receive(stream, room)

    def sending(stream: MemoryStream, buffers: Sequence[memoryview]) -> int:
        steps.append(("write" if b"written" in b"".join(buffers) else "ask", stream.endpoint.host))
        return send(stream, buffers)

    monkeypatch.setattr(MemoryStream, "receive_into", receiving)
    monkeypatch.setattr(MemoryStream, "send", sending)
    for node in (1, 2):
        broker(world, NODES[node]).release()
    for stream in world.network.streams:
        stream.faults.stuck = False
    world.cluster.refresh("orders")
    world.clock.advance(10.0)
    world.turn()
    assert steps == [("read", "one"), ("read", "two"), ("write", "one"), ("write", "two"), ("ask", "one")]


def test_seeds_are_tried_in_order_until_one_answers() -> None:
    world = World([SEED, SECOND_SEED, ONE], [ToyBroker(ONE, VIEW), ToyBroker(TWO, VIEW)])
    learn(world)
    assert world.network.opened == [SEED, SECOND_SEED, ONE]
    assert not [event for event in world.events if isinstance(event, Unreachable)]


def test_a_cluster_that_nobody_reaches_says_what_was_tried_for_how_long_and_the_last_answer() -> None:
    world = World([SEED, SECOND_SEED], [])
    world.cluster.want("orders", world.now)
    world.run(lambda: [event for event in world.events if isinstance(event, Unreachable)])
    world.clock.advance(2.0)
    trouble = world.cluster.trouble(world.now)
    assert str(trouble) == (
        "toy://here cannot be reached: tried seed:1, seed:2 for 2.0 s; last answer: cannot connect to seed:2: refused"
    )


def test_an_unreachable_cluster_is_tried_on_with_pauses_and_found_when_it_comes_back() -> None:
    world = World([ONE], [])
    world.cluster.want("orders", world.now)
    start = world.now
    world.run(lambda: world.now > start + 20, seconds=30)
    assert 10 <= len(world.network.opened) <= 40
    world.network.brokers = {endpoint: ToyBroker(endpoint, VIEW) for endpoint in (ONE, TWO)}
    learn(world)
    assert world.cluster.trouble(world.now) is None


def test_a_swallowed_attempt_gives_way_to_the_next_seed() -> None:
    silent = ToyBroker(SEED, VIEW, faults=lambda: Faults(silent_until=1010.0))
    world = World([SEED, ONE], [silent, ToyBroker(ONE, VIEW), ToyBroker(TWO, VIEW)])
    learn(world)
    assert world.now == pytest.approx(1010.0)
    assert isinstance(world.events[0], Disconnected)
    assert isinstance(world.events[0].reason, TimedOutError)


def test_a_seed_that_is_no_broker_is_left_once_a_broker_is_connected() -> None:
    world = learn(make_world(seed=SEED))
    world.settle()
    assert not world.network.streams[0].closed
    world.connection(1)
    world.settle()
    assert [stream.closed for stream in world.network.streams] == [True, False]


def test_brokers_that_cannot_be_reached_leave_the_seed_to_be_asked() -> None:
    world = World([SEED], [ToyBroker(SEED, VIEW)])
    learn(world)
    assert world.cluster.connection(1, world.now) is None
    world.settle()
    assert "refused" in str(world.cluster.failure(1))
    assert world.cluster.failure(2) is None
    assert world.cluster.trouble(world.now) is None


def test_a_broker_of_another_cluster_is_never_used() -> None:
    world = learn(make_world())
    broker(world, TWO).view = cluster_view({2: TWO}, "other", orders=TopicView({0: PartitionView(2, 99)}))
    world.cluster.connection(2, world.now)
    world.run(lambda: world.cluster.failure(2))
    assert isinstance(world.cluster.failure(2), RefusedError)
    assert world.cluster.connection(2, world.now) is None
    assert (world.cluster.leader(Partition("orders", 0)), world.cluster.topology.cluster_id) == (1, "toy-1")
    assert all(not isinstance(request, Say) for request in broker(world, TWO).asked)
    broker(world, TWO).view = VIEW
    world.connection(2)


def test_a_broker_that_changes_its_cluster_is_left() -> None:
    world = learn(make_world())
    show(world, cluster_view(NODES, "other", orders=ORDERS))
    world.cluster.refresh()
    world.run(lambda: any(isinstance(event, Disconnected) for event in world.events))
    assert world.network.streams[0].closed
    assert world.cluster.leader(Partition("orders", 0)) == 1


def test_a_broker_that_moved_is_connected_to_anew() -> None:
    world = learn(make_world())
    old = world.connection(2)
    broker(world, TWO).held = []
    old.submit(Say(b"x"), "token", world.now)
    world.network.brokers[THREE] = ToyBroker(THREE, VIEW)
    show(world, cluster_view({1: ONE, 2: THREE}, orders=ORDERS))
    world.cluster.refresh("orders")
    world.run(lambda: world.outcomes("token"))
    [lost] = world.outcomes("token")
    assert isinstance(lost, Lost)
    assert "broker 2 moved from two:2 to three:3" in str(lost.error)
    assert world.connection(2) is not old
    assert world.network.opened[-1] == THREE


def test_a_broker_that_moved_is_tried_at_once() -> None:
    world = learn(make_world())
    broker(world, TWO).faults = refused
    for _ in range(10):
        world.cluster.connection(2, world.now)
        world.clock.advance(1.0)
        world.settle()
    world.network.brokers[THREE] = ToyBroker(THREE, VIEW)
    show(world, cluster_view({1: ONE, 2: THREE}, orders=ORDERS))
    world.cluster.connection(2, world.now)
    world.cluster.refresh()
    world.run(lambda: world.cluster.topology.nodes[2] == THREE)
    start = world.now
    world.connection(2)
    assert world.now == start


def test_a_broker_that_greets_twice_in_one_breath_is_left() -> None:
    world = learn(make_world())
    babbler = broker(world, TWO)
    welcome = babbler.hear

    def babble(stream: MemoryStream) -> None:
        welcome(stream)
        stream.inbox += bytes(stream.inbox)

    babbler.hear = babble  # type: ignore[method-assign]
    world.cluster.connection(2, world.now)
    world.run(lambda: world.cluster.failure(2))
    assert "greeted twice" in str(world.cluster.failure(2))


def test_a_broker_met_elsewhere_can_be_spoken_to() -> None:
    world = learn(make_world())
    world.network.brokers[THREE] = ToyBroker(THREE, cluster_view({**NODES, 3: THREE}))
    world.cluster.meet(3, THREE, world.now)
    world.connection(3).submit(Say(b"x"), "token", world.now)
    world.run(lambda: world.outcomes("token"))
    old = world.connection(2)
    world.cluster.meet(2, THREE, world.now)
    assert world.connection(2) is not old


def test_a_broker_that_is_gone_is_left_when_it_has_nothing_to_answer() -> None:
    world = learn(make_world())
    pipeline = world.connection(2)
    broker(world, TWO).held = []
    pipeline.submit(Say(b"x"), "token", world.now)
    show(world, cluster_view({1: ONE}, orders=ORDERS))
    world.cluster.refresh()
    world.run(lambda: 2 not in world.cluster.topology.nodes)
    assert world.cluster.connection(2, world.now) is None
    broker(world, TWO).release()
    world.settle()
    assert world.outcomes("token") == [Answered("token", b"x")]
    assert broker(world, TWO).streams[0].closed


def test_leaders_that_change_are_learnt_when_asked_for() -> None:
    world = learn(make_world())
    show(world, cluster_view(NODES, orders=TopicView({0: PartitionView(2, 1), 1: PartitionView(2, 0)})))
    world.cluster.refresh("orders")
    world.run(lambda: world.cluster.leader(Partition("orders", 0)) == 2)
    assert world.events[-1] == TopicChanged("orders", 2)


def test_added_partitions_are_noticed_without_being_asked_for() -> None:
    world = learn(make_world())
    show(world, cluster_view(NODES, orders=TopicView({number: PartitionView(1, 0) for number in range(3)})))
    world.clock.advance(200.0)
    world.cluster.want("orders", world.now)
    world.run(lambda: world.cluster.partitions("orders") == 3, seconds=150)
    assert world.now == pytest.approx(1300.0)


def test_a_missing_topic_is_told_and_found_when_it_comes() -> None:
    world = make_world(cluster_view(NODES))
    world.cluster.want("orders", world.now)
    world.run(lambda: world.cluster.error("orders"))
    assert isinstance(world.cluster.error("orders"), UnknownTopicError)
    assert isinstance(world.events[-1], TopicFailed)
    show(world, VIEW)
    world.run(lambda: world.cluster.partitions("orders"), seconds=2)
    assert world.cluster.error("orders") is None


def test_a_topic_that_is_denied_is_told_and_not_asked_for_again_and_again() -> None:
    denied = DeniedError("not yours")
    world = make_world(cluster_view(NODES, orders=TopicView({}, denied)))
    world.cluster.want("orders", world.now)
    world.run(lambda: world.cluster.error("orders"))
    assert str(world.cluster.error("orders")) == "not yours"
    asked = len(broker(world, ONE).asked)
    world.clock.advance(100.0)
    world.settle()
    assert len(broker(world, ONE).asked) == asked


def test_a_topic_is_created_where_that_is_wanted() -> None:
    world = make_world()
    world.cluster.want("orders", world.now, create=True)
    world.run(lambda: world.cluster.partitions("orders"))
    assert broker(world, ONE).asked[-1] == LookUp(frozenset({"orders"}), create=True)


def test_topics_are_limited_and_can_be_forgotten() -> None:
    world = learn(make_world())
    for number in range(TOPICS_MAX - 1):
        world.cluster.want(f"t{number}", world.now)
    with pytest.raises(BusyError):
        world.cluster.want("one too many", world.now)
    world.cluster.forget("orders")
    assert world.cluster.partitions("orders") is None
    world.cluster.want("one more", world.now)


def test_a_topic_that_nobody_uses_is_forgotten() -> None:
    world = learn(make_world())
    world.run(lambda: world.cluster.partitions("orders") is None, seconds=301)
    assert world.turn() is None


def test_one_look_up_is_outstanding_at_a_time() -> None:
    world = learn(make_world())
    broker(world, ONE).held = []
    for name in ("a", "b", "c"):
        world.cluster.want(name, world.now)
        world.settle()
    assert len(broker(world, ONE).held or []) == 1
    broker(world, ONE).release()
    world.settle()
    assert broker(world, ONE).asked[-1] == LookUp(frozenset({"b", "c"}))


def test_a_look_up_without_an_answer_is_made_elsewhere() -> None:
    world = learn(make_world())
    broker(world, ONE).held = []
    world.connection(2)
    show(world, cluster_view(NODES, orders=ORDERS, late=ORDERS))
    world.cluster.want("late", world.now)
    world.run(lambda: world.cluster.partitions("late"), seconds=40)
    assert world.now == pytest.approx(1030.1, abs=0.2)


def test_a_broker_that_dies_is_tried_with_pauses_that_grow_and_harms_no_other() -> None:
    world = learn(make_world())
    world.connection(1)
    world.connection(2)
    broker(world, TWO).held = []
    world.connection(2).submit(Say(b"x"), "token", world.now)
    broker(world, TWO).die()
    start, before = world.now, len(world.network.opened)

    def five_seconds_later() -> bool:
        world.cluster.connection(2, world.now)
        return world.now >= start + 5

    world.run(five_seconds_later)
    assert isinstance(world.outcomes("token")[0], Lost)
    attempts = world.network.opened[before:]
    assert set(attempts) == {TWO}
    assert 5 <= len(attempts) <= 10
    assert world.cluster.connection(1, world.now) is not None
    broker(world, TWO).faults = Faults
    broker(world, TWO).held = None
    assert world.cluster.failure(2) is not None
    world.connection(2)
    assert world.cluster.failure(2) is None


def test_a_connection_that_ends_with_nothing_in_flight_is_opened_again_without_a_pause() -> None:
    world = learn(make_world())
    world.connection(2)
    broker(world, TWO).streams[0].ended = True
    world.settle()
    start = world.now
    world.connection(2)
    assert world.now == start


def test_nobody_is_woken_for_a_link_that_is_not_wanted_any_more() -> None:
    world = learn(make_world())
    broker(world, TWO).faults = refused
    world.cluster.connection(2, world.now)
    world.settle()
    world.cluster.connection(2, world.now)
    world.clock.advance(10.0)
    world.settle()
    deadline = world.turn()
    assert deadline is not None
    assert deadline > world.now + 100


def test_it_tells_its_state() -> None:
    world = learn(make_world())
    told = repr(world.cluster)
    for part in ("<Cluster toy://here, ", "cluster toy-1, 2 nodes", "<Links to 2 brokers and 1 seeds, 1 open>"):
        assert part in told
    assert {field.name for field in dataclasses.fields(NetParts)} >= {"streams", "poller", "memory", "room"}
