"""A turn of the loop is a round of the commit thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from penstock.broker.rounds import Rounds


class FakeCommitter:
    """Remembers in what order it was held back, given work and let go."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def submit(self, *what: object) -> int:
        self.heard.append(what)
        return len(self.heard)

    @contextmanager
    def hold(self) -> Iterator[None]:
        self.heard.append("hold")
        yield
        self.heard.append("let go")

    def __repr__(self) -> str:
        return "<FakeCommitter>"


def made() -> tuple[Rounds, FakeCommitter]:
    committer = FakeCommitter()
    return Rounds(cast("Any", committer)), committer


def test_all_of_a_turn_goes_together() -> None:
    rounds, committer = made()
    for _ in range(2):
        assert rounds.submit(cast("Any", "work")) > 0
        rounds.submit(None, cast("Any", "done"), cast("Any", "log"))
        assert "held back" in repr(rounds)
        rounds.let_go()
        assert "let go" in repr(rounds)
    assert committer.heard == ["hold", ("work", None, None), (None, "done", "log"), "let go"] * 2


def test_a_turn_without_work_begins_no_round() -> None:
    rounds, committer = made()
    rounds.let_go()
    assert committer.heard == []


def test_once_turns_are_over_nothing_is_held_back() -> None:
    rounds, committer = made()
    rounds.submit()
    rounds.stop()
    rounds.submit()
    assert committer.heard == ["hold", (None, None, None), "let go", (None, None, None)]
