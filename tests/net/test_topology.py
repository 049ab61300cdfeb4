from __future__ import annotations

from uuid import UUID

import pytest

from penstock.errors import BusyError, DeniedError, NotLeaderError, RefusedError, UnknownTopicError
from penstock.net.topology import (
    OLDER_VIEWS_MAX,
    NodeGone,
    NodeMoved,
    TopicChanged,
    TopicFailed,
    Topology,
)
from penstock.wire.protocol import ClusterView, Endpoint, NodeId, Partition, PartitionView, TopicView

A, B, C = Endpoint("a", 1), Endpoint("b", 2), Endpoint("c", 3)
NODES: dict[NodeId, Endpoint] = {1: A, 2: B}


def view(
    cluster_id: str | None = "x", nodes: dict[NodeId, Endpoint] | None = None, /, **topics: TopicView
) -> ClusterView:
    return ClusterView(cluster_id, NODES if nodes is None else nodes, topics, controller=1)


def topic(*leaders: tuple[NodeId | None, int]) -> TopicView:
    return TopicView({number: PartitionView(*leader) for number, leader in enumerate(leaders)})


def test_what_a_view_tells_is_known() -> None:
    known = Topology("toy")
    assert known.learn(view(orders=topic((1, 0), (2, 0), (None, 0))), {"orders"}) == [TopicChanged("orders", 3)]
    assert (known.cluster_id, known.controller, known.nodes) == ("x", 1, NODES)
    assert [known.leader(Partition("orders", number)) for number in range(4)] == [1, 2, None, None]
    assert (known.partitions("orders"), known.partitions("other")) == (3, None)
    assert known.leader(Partition("other", 0)) is None
    assert known.error("orders") is None


def test_a_view_that_tells_nothing_new_changes_nothing() -> None:
    known = Topology("toy")
    known.learn(view(orders=topic((1, 0))), {"orders"})
    assert known.learn(view(orders=topic((1, 0))), {"orders"}) == []


def test_a_view_of_another_cluster_is_refused_as_a_whole() -> None:
    known = Topology("toy")
    known.learn(view(orders=topic((1, 0))), {"orders"})
    with pytest.raises(RefusedError, match="belongs to cluster y, but toy is cluster x"):
        known.learn(view("y", {9: C}, orders=topic((9, 5))), {"orders"})
    assert (known.nodes, known.leader(Partition("orders", 0))) == (NODES, 1)


def test_a_view_without_a_cluster_id_is_believed() -> None:
    known = Topology("toy")
    known.learn(view(None), ())
    known.learn(view("x"), ())
    known.learn(view(None, {3: C}), ())
    assert (known.cluster_id, known.nodes) == ("x", {3: C})


def test_a_leader_epoch_never_goes_back() -> None:
    known = Topology("toy")
    known.learn(view(orders=topic((1, 5), (1, 5))), {"orders"})
    assert known.learn(view(orders=topic((2, 6), (2, 4))), {"orders"}) == [TopicChanged("orders", 2)]
    assert [known.leader(Partition("orders", number)) for number in (0, 1)] == [2, 1]
    assert known.learn(view(orders=topic((1, 5), (2, 4))), {"orders"}) == []
    assert known.learn(view(orders=topic((None, 6), (1, 5))), {"orders"}) == [TopicChanged("orders", 2)]
    assert known.leader(Partition("orders", 0)) is None


def test_a_leader_without_an_epoch_is_believed() -> None:
    known = Topology("toy")
    known.learn(view(orders=topic((1, 5))), {"orders"})
    known.learn(view(orders=topic((2, -1))), {"orders"})
    assert known.leader(Partition("orders", 0)) == 2


def test_partitions_added_later_are_noticed() -> None:
    known = Topology("toy")
    known.learn(view(orders=topic((1, 0))), {"orders"})
    assert known.learn(view(orders=topic((1, 0), (2, 0))), {"orders"}) == [TopicChanged("orders", 2)]


@pytest.mark.parametrize("gone", [TopicView({}, UnknownTopicError("gone")), None])
def test_a_topic_that_vanished_is_forgotten_and_may_come_back_as_another(gone: TopicView | None) -> None:
    known = Topology("toy")
    known.learn(view(orders=topic((1, 50), (1, 50))), {"orders"})
    [failed] = known.learn(view(orders=gone) if gone else view(), {"orders"})
    assert isinstance(failed, TopicFailed)
    assert isinstance(failed.error, UnknownTopicError)
    assert (known.partitions("orders"), known.error("orders")) == (None, failed.error)
    assert known.learn(view(orders=topic((2, 0))), {"orders"}) == [TopicChanged("orders", 1)]
    assert known.leader(Partition("orders", 0)) == 2


def test_a_topic_with_fewer_partitions_is_another_one() -> None:
    known = Topology("toy")
    known.learn(view(orders=topic((1, 50), (1, 50))), {"orders"})
    assert known.learn(view(orders=topic((2, 0))), {"orders"}) == [TopicChanged("orders", 1)]
    assert known.leader(Partition("orders", 0)) == 2


def test_a_topic_made_anew_unseen_is_believed_when_its_epochs_stay_older() -> None:
    known = Topology("toy")
    known.learn(view(orders=topic((1, 50))), {"orders"})
    for _ in range(OLDER_VIEWS_MAX - 1):
        assert known.learn(view(orders=topic((2, 0))), {"orders"}) == []
    assert known.learn(view(orders=topic((2, 0))), {"orders"}) == [TopicChanged("orders", 1)]


def test_one_good_view_between_older_ones_starts_the_count_anew() -> None:
    known = Topology("toy")
    known.learn(view(orders=topic((1, 50))), {"orders"})
    for _ in range(3 * OLDER_VIEWS_MAX):
        known.learn(view(orders=topic((2, 0))), {"orders"})
        known.learn(view(orders=topic((1, 50))), {"orders"})
    assert known.leader(Partition("orders", 0)) == 1


def test_an_error_that_passes_keeps_the_partitions_and_one_that_stays_does_not() -> None:
    known = Topology("toy")
    known.learn(view(orders=topic((1, 0))), {"orders"})
    busy, denied = BusyError("no leader yet"), DeniedError("not yours")
    assert known.learn(view(orders=TopicView({}, busy)), {"orders"}) == [TopicFailed("orders", busy)]
    assert (known.partitions("orders"), known.error("orders")) == (1, busy)
    assert known.learn(view(orders=topic((1, 0))), {"orders"}) == [TopicChanged("orders", 1)]
    assert known.error("orders") is None
    assert known.learn(view(orders=TopicView({}, denied)), {"orders"}) == [TopicFailed("orders", denied)]
    assert known.partitions("orders") is None


def test_a_topic_is_settled_when_asking_again_would_bring_nothing() -> None:
    known = Topology("toy")
    told = {
        "led": topic((1, 0)),
        "leaderless": topic((1, 0), (None, 0)),
        "busy": TopicView({}, NotLeaderError("")),
        "denied": TopicView({}, DeniedError("")),
        "empty": TopicView({}),
    }
    known.learn(ClusterView("x", NODES, told), told)
    assert {name for name in told if known.is_settled(name)} == {"led", "denied"}
    assert not known.is_settled("never heard of")


def test_brokers_that_moved_or_went_are_told() -> None:
    known = Topology("toy")
    known.learn(view(), ())
    assert known.learn(view("x", {2: C, 3: A}), ()) == [NodeGone(1), NodeMoved(2, C)]


def test_a_view_that_names_no_broker_leaves_them_known() -> None:
    known = Topology("toy")
    known.learn(view(), ())
    assert known.learn(view("x", {}), ()) == []
    assert known.nodes == NODES


def test_a_broker_met_elsewhere_is_known() -> None:
    known = Topology("toy")
    known.learn(view(), ())
    assert known.meet(3, C) == []
    assert known.meet(1, C) == [NodeMoved(1, C)]
    assert known.nodes == {1: C, 2: B, 3: C}


def test_a_forgotten_topic_is_not_known() -> None:
    known = Topology("toy")
    known.learn(view(orders=topic((1, 0))), {"orders"})
    known.forget("orders")
    assert known.partitions("orders") is None
    assert repr(known) == "<Topology of toy, cluster x, 2 nodes, controller 1, 0 topics>"


def with_id(number: int, *leaders: tuple[NodeId | None, int]) -> TopicView:
    return TopicView(topic(*leaders).partitions, id=UUID(int=number))


def test_epochs_and_ids_are_known() -> None:
    known = Topology("toy")
    assert (known.leader_epoch(Partition("orders", 0)), known.topic_id("orders")) == (-1, None)
    known.learn(view(orders=with_id(7, (1, 5), (2, 6))), {"orders"})
    assert [known.leader_epoch(Partition("orders", number)) for number in range(3)] == [5, 6, -1]
    assert known.topic_id("orders") == UUID(int=7)


def test_a_topic_made_anew_is_taken_as_it_is_told() -> None:
    known = Topology("toy")
    known.learn(view(orders=with_id(7, (1, 5))), {"orders"})
    assert known.learn(view(orders=with_id(8, (2, 0))), {"orders"}) == [TopicChanged("orders", 1)]
    assert (known.topic_id("orders"), known.leader(Partition("orders", 0))) == (UUID(int=8), 2)
    assert known.learn(view(orders=with_id(9, (2, 0))), {"orders"}) == [TopicChanged("orders", 1)]


def test_a_broker_that_tells_no_ids_changes_none() -> None:
    known = Topology("toy")
    known.learn(view(orders=with_id(7, (1, 5))), {"orders"})
    assert known.learn(view(orders=topic((1, 5))), {"orders"}) == []
    assert known.topic_id("orders") == UUID(int=7)
    assert known.learn(view(orders=topic((2, 4))), {"orders"}) == []


def test_a_topic_that_is_gone_has_no_id() -> None:
    known = Topology("toy")
    known.learn(view(orders=with_id(7, (1, 5))), {"orders"})
    known.learn(view(), {"orders"})
    assert known.topic_id("orders") is None
