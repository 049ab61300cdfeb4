"""The process ends between any two things that become durable: nothing is lost, or twice, or half seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from penstock.broker.transactions import State
from penstock.wire.protocol import Identity
from tests.broker.transactions_kit import CRASHES, A, B, C, Crash, Disk, World

Seen: TypeAlias = tuple[list[str], list[str], int | None]

ROUNDS = 6
"""Rounds from the first entry to the end, and one more."""


def story(world: World, mine: Identity, commit: bool, renews: bool) -> Callable[[], bool]:
    """A client's transaction, asked for step by step; tells whether it is through."""
    asked = [
        world.enlist("t", mine, A, B, C),
        world.publish(A, mine, 0, "a"),
        world.publish(B, mine, 0, "b"),
        world.commit_offset("t", mine, "g", C, 7),
    ]
    ends: list[list[object]] = []

    def go_on() -> bool:
        if all(asked) and not ends:
            ends.append(world.end("t", mine, commit, renews))
        return bool(ends and ends[0])

    return go_on


def seen(world: World) -> Seen:
    return world.committed(A), world.committed(B), world.offset("g", C)


ALL: Seen = (["a"], ["b"], 7)
NOTHING: Seen = ([], [], None)


@pytest.mark.parametrize("system", [False, True])
@pytest.mark.parametrize("renews", [False, True])
@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("crash", CRASHES)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_crash_at_any_step(
    tmp_path: Path, number: int, crash: Crash, commit: bool, renews: bool, system: bool
) -> None:
    world = World(Disk(tmp_path, system))
    mine = world.given()
    go_on = story(world, mine, commit, renews)
    told = False
    for _ in range(number):
        world.round()
        told = go_on()
    world.round(crash=crash)

    world = world.restarted()
    world.settle()
    state = world.state()
    assert state in (State.EMPTY, State.ONGOING, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
    complete = State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT
    assert not told or state is complete
    assert seen(world) == (ALL if state is State.COMPLETE_COMMIT else NOTHING)

    world.pass_time(0.1)  # partitions were opened by looking at them
    world.settle()
    if world.state() is not complete:
        go_on = story(world, mine, commit, renews)
        while not go_on():
            world.round()
    assert world.state() is complete
    assert seen(world) == (ALL if commit else NOTHING)
    assert world.end("t", mine, commit, renews) == [world.transactions.page("t").identity]
    for partition in (A, B):
        values = [row.value for row in world.partition(*partition).rows]
        assert len([value for value in values if value in "ab"]) == 1
        assert world.partition(*partition).stable == len(values)
    world.close()


@pytest.mark.parametrize("system", [False, True])
@pytest.mark.parametrize("crash", CRASHES)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_crash_while_another_takes_the_id(tmp_path: Path, number: int, crash: Crash, system: bool) -> None:
    world = World(Disk(tmp_path, system))
    old = world.given()
    for partition, value in ((A, "a"), (B, "b")):
        world.publish(partition, old, 0, value)
    world.commit_offset("t", old, "g", C, 7)
    world.settle()
    taken = world.identify("t")
    for _ in range(number):
        world.round()
    world.round(crash=crash)

    world = world.restarted()
    world.settle()
    new = world.given()
    assert not taken or new.epoch > taken[0].epoch
    assert new.epoch >= 2
    assert seen(world) == NOTHING
    world.pass_time(0.1)
    world.settle()
    for partition in (A, B):
        assert world.partition(*partition).stable == len(world.partition(*partition).rows)
        world.publish(partition, new, 0, f"new {partition.number}")
    told = world.end("t", new)
    world.settle()
    assert isinstance(told[0], Identity)
    assert seen(world) == (["new 0"], ["new 1"], None)
    world.close()


@pytest.mark.parametrize("crash", CRASHES)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_crash_while_its_time_is_over(tmp_path: Path, number: int, crash: Crash) -> None:
    world = World(Disk(tmp_path))
    mine = world.given(timeout_ms=1000)
    for partition, value in ((A, "a"), (B, "b")):
        world.publish(partition, mine, 0, value)
    world.settle()
    world.pass_time(1)
    for _ in range(number):
        world.round()
    world.round(crash=crash)
    world = world.restarted()
    world.settle()
    world.pass_time(2)
    world.settle()
    assert world.state() is State.COMPLETE_ABORT
    assert world.transactions.page("t").identity == Identity(mine.producer, 1)
    assert seen(world) == NOTHING
    for partition in (A, B):
        assert world.partition(*partition).stable == len(world.partition(*partition).rows)
    world.close()
