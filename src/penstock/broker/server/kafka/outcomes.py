"""The parts of one answer: some are known later than others, some take long to make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from penstock.broker.server.kafka.dispatch import Context

T = TypeVar("T")


class Outcomes(Generic[T]):
    """Takes the outcome of each part, in any order; hands all on, in theirs, once the last is known.

    Nothing is handed on before `seal`, which whoever made the parts calls when all of them are on their way.
    """

    __slots__ = ("_finish", "_left", "_parts")

    def __init__(self, count: int, finish: Callable[[Sequence[T]], None]) -> None:
        self._parts: list[Any] = [None] * count
        self._left = count + 1
        self._finish = finish

    def set(self, index: int, outcome: T) -> None:
        """The outcome of one part; once for each."""
        self._parts[index] = outcome
        self._count_down()

    def seal(self) -> None:
        """Every part is set, or will be."""
        self._count_down()

    def _count_down(self) -> None:
        self._left -= 1
        if not self._left:
            self._finish(self._parts)


def in_steps(context: Context, steps: Iterator[object], finish: Callable[[], None]) -> None:
    """Go on to the next step in each turn of the loop, so that others have their turn too; then finish.

    The client's next requests are not read meanwhile: what steps have made so far counts nowhere. A client that has
    gone ends it.
    """
    connection = context.connection

    def step() -> None:
        if not context.slot.is_open:
            return
        try:
            if next(steps, None) is not None:
                connection.soon(step)
                return
            finish()
        except Exception as error:  # noqa: BLE001
            context.fail(error)
        connection.go_on()

    connection.pause()
    step()
