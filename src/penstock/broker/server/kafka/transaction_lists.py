"""What administration tools ask about transactions and producers.

Answers can be long, and every partition that is asked about is opened: they are made in steps, some rows in each turn
of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from penstock.broker.groups.pattern import Pattern
from penstock.broker.groups.pattern_syntax import PatternError
from penstock.broker.refusals import Refusal, Refused
from penstock.broker.server.kafka import codec
from penstock.broker.server.kafka.codes import NONE, code_of
from penstock.broker.server.kafka.dispatch import Context
from penstock.broker.server.kafka.outcomes import in_steps
from penstock.broker.transactions.page import Page, State
from penstock.errors import PenstockError
from penstock.wire.kafka.writer import writer_of

PAGES_PER_TURN: Final = 200
PARTITIONS_PER_TURN: Final = 5
NO_COORDINATOR_EPOCH: Final = -1
COORDINATOR_EPOCH: Final = 0
NOWHERE: Final = -1
UNKNOWN: Final[dict[str, Any]] = {
    "transaction_state": "",
    "transaction_timeout": 0,
    "transaction_start_time": 0,
    "producer_id": 0,
    "producer_epoch": 0,
    "topics": (),
}


def describe_transactions(request: Any, context: Context) -> None:
    """What is known of transactional ids."""
    rows: list[bytes] = []
    write = _row_writer("TransactionState", context)

    def steps() -> Iterator[int]:
        for number, tid in enumerate(request.transactional_ids, 1):
            rows.append(write(_described(tid, context)))
            if number % PAGES_PER_TURN == 0:
                yield number

    in_steps(context, steps(), lambda: context.answer(transaction_states=rows))


def _described(tid: str, context: Context) -> dict[str, Any]:
    try:
        page = context.broker.transactions.page(tid)
    except Refused as refused:
        return UNKNOWN | {"error_code": code_of(refused), "transactional_id": tid}
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(page.partitions):
        topics.setdefault(topic, []).append(number)
    return {
        "error_code": NONE,
        "transactional_id": tid,
        "transaction_state": page.state.value,
        "transaction_timeout": page.timeout_ms,
        "transaction_start_time": page.began_ms,
        "producer_id": page.producer,
        "producer_epoch": page.epoch,
        "topics": [{"topic": topic, "partitions": numbers} for topic, numbers in topics.items()],
    }


def list_transactions(request: Any, context: Context) -> None:
    """The transactional ids that fit."""
    names = {state.value for state in State}
    unknown = [name for name in request.state_filters if name not in names]
    fits = _filter(request, context)
    rows: list[bytes] = []
    write = _row_writer("TransactionState", context)

    def steps() -> Iterator[int]:
        for number, page in enumerate(context.broker.transactions.pages(), 1):
            if fits(page):
                tid, state = page.transactional_id, page.state.value
                rows.append(write({"transactional_id": tid, "producer_id": page.producer, "transaction_state": state}))
            if number % PAGES_PER_TURN == 0:
                yield number

    in_steps(
        *(context, steps()),
        lambda: context.answer(error_code=NONE, unknown_state_filters=unknown, transaction_states=rows),
    )


def _filter(request: Any, context: Context) -> Callable[[Page], bool]:
    """Whether a page is asked for."""
    pattern = getattr(request, "transactional_id_pattern", None)
    try:
        name = Pattern(pattern) if pattern else None
    except PatternError as error:
        raise Refused(Refusal.BAD_PATTERN, f"transactional ids: {error}") from error
    open_for_ms = getattr(request, "duration_filter", -1)
    states, producers = frozenset(request.state_filters), frozenset(request.producer_id_filters)

    def fits(page: Page) -> bool:
        return (
            (not states or page.state.value in states)
            and (not producers or page.producer in producers)
            and (open_for_ms < 0 or context.now_ms - page.began_ms > open_for_ms)
            and (name is None or name.matches(page.transactional_id))
        )

    return fits


def describe_producers(request: Any, context: Context) -> None:
    """The producers of partitions, and where their transactions begin."""
    topics = [{"name": topic.name, "partitions": list[bytes]()} for topic in request.topics]
    write = _row_writer("PartitionResponse", context)

    def steps() -> Iterator[int]:
        number = 0
        for asked, told in zip(request.topics, topics, strict=True):
            for partition in asked.partition_indexes:
                told["partitions"].append(write(_producers(asked.name, partition, context)))
                number += 1
                if number % PARTITIONS_PER_TURN == 0:
                    yield number

    in_steps(context, steps(), lambda: context.answer(topics=topics))


def _producers(topic: str, number: int, context: Context) -> dict[str, Any]:
    row = {"partition_index": number, "error_code": NONE, "error_message": None, "active_producers": ()}
    try:
        state = context.broker.partition(topic, number)
    except PenstockError as error:
        return {**row, "error_code": code_of(error), "error_message": str(error)}
    producers = [
        {
            "producer_id": producer,
            "producer_epoch": known.epoch,
            "last_sequence": known.last_sequence,
            "last_timestamp": known.heard_ms,
            "coordinator_epoch": COORDINATOR_EPOCH if known.marked else NO_COORDINATOR_EPOCH,
            "current_txn_start_offset": NOWHERE if known.open_at is None else known.open_at,
        }
        for producer, known in state.producers.describe()
    ]
    return {**row, "active_producers": producers}


def _row_writer(structure: str, context: Context) -> Callable[[dict[str, Any]], bytes]:
    """What turns a row into its bytes, so that the answer is only put together in the end."""
    write = writer_of(codec.part_of(context.api, context.version, "response", structure))  # type: ignore[arg-type]

    def row(values: dict[str, Any]) -> bytes:
        out = bytearray()
        write(out, values)
        return bytes(out)

    return row
