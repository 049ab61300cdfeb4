"""Message ids: the plain twin and the compiled one are the same to whoever has one."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from penstock import message
from penstock.message import PlainMessageId, Position

TWINS: list[Any] = [PlainMessageId]
if message.MessageId is not PlainMessageId:
    TWINS.append(message.MessageId)

POSITIONS: list[Position | None] = [0, 5, 1 << 40, (1 << 63) - 1, 1 << 70, -3, True, (3, 4, 5), (), None]


@pytest.fixture(params=TWINS, ids=lambda twin: twin.__module__)
def twin(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("position", POSITIONS)
def test_an_id_gives_back_what_it_was_made_of(twin: Any, position: Position | None) -> None:
    made = twin("t", 3, position)
    assert (made.topic, made.partition, made.position) == ("t", 3, position)
    assert type(made.position) is type(position)
    topic, partition, where = made
    assert (topic, partition, where) == tuple(made) == ("t", 3, position)
    assert len(made) == 3
    assert made[2] == made[-1] == position
    assert repr(made) == f"MessageId(topic='t', partition=3, position={position!r})"


def test_an_id_is_shown_as_a_place(twin: Any) -> None:
    assert str(twin("orders", 3, 1071)) == "orders-3@1071"
    assert str(twin("orders", 3, None)) == "orders-3@?"


@pytest.mark.parametrize("other", TWINS)
@pytest.mark.parametrize("position", POSITIONS)
def test_ids_of_one_place_are_equal_whichever_twin_made_them(twin: Any, other: Any, position: Position | None) -> None:
    one, two = twin("t", 3, position), other("t", 3, position)
    assert one == two == ("t", 3, position)
    assert hash(one) == hash(two)
    assert one != other("t", 4, position)
    assert one != other("u", 3, position)
    assert one != "t-3@5"
    assert one not in [None, 5, ("t", 3)]
    assert {one: 1}[two] == 1


@pytest.mark.parametrize("other", TWINS)
def test_ids_of_a_partition_are_ordered_by_position(twin: Any, other: Any) -> None:
    first, second = twin("t", 3, 9), other("t", 3, 10)
    assert first < second > first
    assert first <= second >= first
    assert first <= other("t", 3, 9) >= first
    assert sorted([second, first]) == [first, second]
    with pytest.raises(TypeError):
        first < 5  # noqa: B015


@pytest.mark.parametrize("position", POSITIONS)
def test_an_id_travels_to_another_process(twin: Any, position: Position | None) -> None:
    found = pickle.loads(pickle.dumps(twin("t", 3, position)))
    assert found == twin("t", 3, position)
    assert type(found) is message.MessageId


def test_an_id_cannot_be_changed(twin: Any) -> None:
    made = twin("t", 3, 5)
    for name in ("topic", "partition", "position"):
        with pytest.raises(AttributeError):
            setattr(made, name, 1)


def test_the_quickest_way_makes_the_same() -> None:
    assert message.make_id(("t", 3, 5)) == message.MessageId("t", 3, 5)
    assert type(message.make_id(("t", 3, 5))) is message.MessageId
