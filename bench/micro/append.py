"""One message at a time: what `append` costs beside a call of an empty compiled method."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bench.micro import empty
from bench.micro.kernels import ours, plain
from bench.micro.messages import BATCH_BYTES, Messages, make, told_by
from bench.results import Bar, Row, Section
from bench.timing import Clock, interleave

NAME = "micro.append"
COMPARED = """\
One `append` beside an empty compiled method of the same signature, called the same way in the same loop, in CPU time of
the measuring thread per call. Messages are appended until a batch of 256 KB is full, then it is cleared and used again.
What the loop takes without any call was subtracted from both sides. The ratio tells how many times the other's cost
ours is.
"""

Append = Callable[..., object]
Loop = Callable[[Append], None]


def run(rounds: int, bytes_max: int = BATCH_BYTES) -> Section:
    """Check that what was appended is there, then time the calls."""
    rows = []
    for case, size, with_properties, bar in (
        ("100 B", 100, False, Bar("≤", 3)),
        ("100 B, key, 2 properties", 100, True, Bar("≤", 6)),
        ("1 KB", 1000, False, None),
        ("1 KB, key, 2 properties", 1000, True, None),
    ):
        messages = fill_of(bytes_max, size, with_properties=with_properties)
        check(messages, bytes_max)
        rows += rows_of(case, messages, bytes_max, rounds, bar)
    return Section(NAME, COMPARED, rows, rounds, ("Cython",))


def fill_of(bytes_max: int, size: int, *, with_properties: bool) -> Messages:
    """As many messages as one batch takes."""
    some = make(bytes_max // size, size, with_properties=with_properties)
    count = ours().BatchBuffer(bytes_max).extend(some.values, some.keys, some.properties)
    return make(count, size, with_properties=with_properties)


def loop_over(messages: Messages) -> Loop:
    """A loop that hands each message to a call."""
    return partial(call_with_all if messages.keys else call_with_value, messages)


def call_with_value(messages: Messages, append: Append) -> None:
    """Values only."""
    for value in messages.values:
        append(value)


def call_with_all(messages: Messages, append: Append) -> None:
    """Value, key and properties."""
    assert messages.keys is not None
    assert messages.properties is not None
    for value, key, properties in zip(messages.values, messages.keys, messages.properties, strict=True):
        append(value, key, properties)


def loop_alone(messages: Messages) -> None:
    """The same loops without the call."""
    if messages.keys is None or messages.properties is None:
        for _ in messages.values:
            pass
    else:
        for _, _, _ in zip(messages.values, messages.keys, messages.properties, strict=True):
            pass


def fill_and_clear(buffer: Any, loop: Loop) -> None:
    """One batch."""
    loop(buffer.append)
    buffer.clear()


def rows_of(case: str, messages: Messages, bytes_max: int, rounds: int, bar: Bar | None) -> list[Row]:
    """Time one kind of message."""
    loop = loop_over(messages)
    contestants = {
        "loop": partial(loop_alone, messages),
        "append": partial(fill_and_clear, ours().BatchBuffer(bytes_max), loop),
        "empty call": partial(fill_and_clear, empty.load()(), loop),
        "plain twin": partial(fill_and_clear, plain().BatchBuffer(bytes_max), loop),
    }
    timings = interleave(contestants, rounds, Clock.THREAD).without("loop")
    costs = {name: f"{timings.median(name) / len(messages) * 1e9:.1f} ns" for name in timings.samples}
    return [
        Row(case, costs["append"], other, costs[other], timings.ratio("append", other), limit)
        for other, limit in (("empty call", bar), ("plain twin", None))
    ]


def check(messages: Messages, bytes_max: int) -> None:
    """The loop must append every message."""
    for kit in (ours(), plain()):
        buffer = kit.BatchBuffer(bytes_max)
        loop_over(messages)(buffer.append)
        buffer.seal()
        columns = kit.decode(b"".join(buffer.stamp()))
        assert told_by(columns) == [message._replace(time_ms=-1) for message in messages.told()]
