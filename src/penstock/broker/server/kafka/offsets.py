"""Where logs start and end, which position has which time, and where a leader's epoch ended: ListOffsets and such.

| time asked for | from | answer                                                                         |
|----------------|------|--------------------------------------------------------------------------------|
| -1             |      | the end, of what is committed where the client reads only that                 |
| -2             |      | the start                                                                      |
| -3             | 7    | the message with the largest time                                              |
| -4             | 8    | the start, since everything is on this machine                                 |
| -5             | 9    | none, since nothing is elsewhere                                               |
| -6             | 11   | none, the same                                                                 |
| 0 and above    |      | the first message with this time or a later one                                |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.refusals import Refusal, Refused
from penstock.broker.server.kafka.codes import NONE, NUMBERS, code_of
from penstock.broker.server.kafka.dispatch import Context
from penstock.broker.server.kafka.outcomes import in_steps
from penstock.broker.server.kafka.record_times import Opening, Reached
from penstock.errors import PenstockError, StorageError

if TYPE_CHECKING:
    from penstock.broker.log.partition import PartitionLog
    from penstock.broker.partition_state import PartitionState

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIME: Final = -3
EARLIEST_LOCAL: Final = -4
ELSEWHERE: Final = (-5, -6)
NEEDED_VERSION: Final = {MAX_TIME: 7, EARLIEST_LOCAL: 8, -5: 9, -6: 11}
PARTITIONS_PER_TURN: Final = 100
NO_TIME: Final = -1
NO_OFFSET: Final = -1
NO_EPOCH: Final = -1


def list_offsets(request: Any, context: Context) -> None:
    """Positions by time; some partitions in each turn of the loop, since each may have to be opened first."""
    topics: list[dict[str, Any]] = []
    in_steps(context, _list(request, topics, context), lambda: context.answer(topics=topics))


def _list(request: Any, topics: list[dict[str, Any]], context: Context) -> Iterator[int]:
    committed_only = getattr(request, "isolation_level", 0) == 1
    opening, listed = Opening(), 0
    for topic in request.topics:
        rows: list[dict[str, Any]] = []
        topics.append({"name": topic.name, "partitions": rows})
        for asked in topic.partitions:
            rows.append(_listed(topic.name, asked, committed_only, opening, context))
            listed += 1
            if listed % PARTITIONS_PER_TURN == 0:
                yield listed


def _listed(name: str, asked: Any, committed_only: bool, opening: Opening, context: Context) -> dict[str, Any]:
    try:
        state = context.broker.partition(name, asked.partition_index)
        check_epoch(getattr(asked, "current_leader_epoch", NO_EPOCH), state)
        if context.version < NEEDED_VERSION.get(asked.timestamp, 0):
            return {"partition_index": asked.partition_index, "error_code": NUMBERS["UNSUPPORTED_VERSION"]}
        found = _find(state, asked.timestamp, committed_only, opening)
    except EpochError as error:
        return {"partition_index": asked.partition_index, "error_code": error.code}
    except PenstockError as error:
        if isinstance(error, StorageError):
            context.door.loop.tell(f"{name}-{asked.partition_index} cannot be read: {error}")
        return {"partition_index": asked.partition_index, "error_code": code_of(error)}
    return {
        "partition_index": asked.partition_index,
        "error_code": NONE,
        "timestamp": NO_TIME if found is None else found.time_ms,
        "offset": NO_OFFSET if found is None else found.position,
        "leader_epoch": NO_EPOCH if found is None else state.leader_epoch,
    }


def _find(state: PartitionState, time_ms: int, committed_only: bool, opening: Opening) -> Reached | None:
    end = state.readable_end(committed_only)
    if time_ms == LATEST:
        return Reached(end, NO_TIME)
    if time_ms in (EARLIEST, EARLIEST_LOCAL):
        return Reached(state.log.start, NO_TIME)
    if time_ms in ELSEWHERE:
        return None
    if time_ms < 0 and time_ms != MAX_TIME:
        raise Refused(Refusal.BAD_REQUEST, f"{time_ms} is no time")
    reached = _latest(state.log, opening) if time_ms == MAX_TIME else _first_at(state.log, time_ms, opening)
    return reached if reached is not None and reached.position < end else None


def _first_at(log: PartitionLog, time_ms: int, opening: Opening) -> Reached | None:
    """The first message that has the time or a later one.

    An entry that has it by its header may have none: the message was deleted, or the header is wrong. Then it is
    looked for behind that entry.
    """
    found = log.seek_time(time_ms)
    while found is not None:
        entry, after = _read(log, found[0])
        reached = opening.first_at(entry, time_ms, log.start)
        if reached is not None:
            return reached
        found = log.seek_time(time_ms, after)
    return None


def _latest(log: PartitionLog, opening: Opening) -> Reached | None:
    """The message with the largest time; the same holds."""
    best: Reached | None = None
    found = log.latest_time()
    while found is not None and (best is None or best.time_ms < found[1]):
        entry, after = _read(log, found[0])
        reached = opening.latest(entry, log.start)
        if reached is not None and (best is None or best.time_ms < reached.time_ms):
            best = reached
        found = log.latest_time(after) if best is None or best.time_ms < found[1] else None
    return best


def _read(log: PartitionLog, position: int) -> tuple[bytes, int]:
    """The entry that holds a position, and the position behind it."""
    found = log.read(position, 0)
    assert found is not None
    try:
        return found.read(), found.next
    finally:
        found.release()


class EpochError(Exception):
    """A client and the broker do not mean the same leader."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def check_epoch(epoch: int, state: PartitionState) -> None:
    """The epoch in which a client thinks that the broker leads must be the one in which it does."""
    if 0 <= epoch != state.leader_epoch:
        name = "FENCED_LEADER_EPOCH" if epoch < state.leader_epoch else "UNKNOWN_LEADER_EPOCH"
        raise EpochError(NUMBERS[name])


def offset_for_leader_epoch(request: Any, context: Context) -> None:
    """Where the entries of an epoch end."""
    topics = []
    for topic in request.topics:
        rows = [_epoch_end(topic.topic, asked, context) for asked in topic.partitions]
        topics.append({"topic": topic.topic, "partitions": rows})
    context.answer(topics=topics)


def _epoch_end(name: str, asked: Any, context: Context) -> dict[str, Any]:
    try:
        state = context.broker.partition(name, asked.partition)
        check_epoch(asked.current_leader_epoch, state)
    except EpochError as error:
        return {"partition": asked.partition, "error_code": error.code}
    except PenstockError as error:
        return {"partition": asked.partition, "error_code": code_of(error)}
    if asked.leader_epoch != state.leader_epoch:
        return {"partition": asked.partition, "error_code": NONE}
    return {
        "partition": asked.partition,
        "error_code": NONE,
        "leader_epoch": state.leader_epoch,
        "end_offset": state.log.visible,
    }
