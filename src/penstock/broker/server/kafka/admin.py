"""Topics made, grown, cut and deleted, and what administration tools ask beside: one handler for each request."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from penstock.broker.server.kafka.codes import NONE, NUMBERS, code_of
from penstock.broker.server.kafka.configs import change_of, topic_configs
from penstock.broker.server.kafka.dispatch import Context
from penstock.broker.server.kafka.outcomes import Outcomes, in_steps
from penstock.broker.store import Scope
from penstock.broker.topics import Topic
from penstock.errors import PenstockError

USUAL: Final = -1
ONE_REPLICA: Final = 1
NO_WATERMARK: Final = -1
PARTITIONS_PER_TURN: Final = 100


class CodeError(Exception):
    """What Kafka has a code of its own for."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.code = NUMBERS[name]


def told(error: Exception | None) -> dict[str, Any]:
    """An error as rows of answers have it."""
    if error is None:
        return {"error_code": NONE, "error_message": None}
    return {
        "error_code": error.code if isinstance(error, CodeError) else code_of(error),
        "error_message": str(error),
    }


# Creating


def create_topics(request: Any, context: Context) -> None:
    """Create topics; each is answered for when it lasts, and once, however often it is named."""
    twice = _twice([topic.name for topic in request.topics])
    asked = list({topic.name: topic for topic in request.topics}.values())
    outcomes: Outcomes[dict[str, Any]] = Outcomes(len(asked), lambda rows: context.answer(topics=rows))
    for index, topic in enumerate(asked):
        try:
            _check_once(topic.name, twice)
            _create(index, topic, request.validate_only, outcomes, context)
        except (CodeError, PenstockError) as error:
            outcomes.set(index, {"name": topic.name} | told(error))
    outcomes.seal()


def _create(index: int, asked: Any, only_check: bool, outcomes: Outcomes[dict[str, Any]], context: Context) -> None:
    topics = context.broker.topics
    partitions = _partitions(asked, context)
    change = change_of(Scope("topic", asked.name), context, anew=True)
    for config in asked.configs:
        change.set(config.name, config.value)
    settings, _unset = change.finish()
    if only_check:
        row, _own = topics.plan(asked.name, partitions, settings)
        outcomes.set(index, {"name": row.name, "num_partitions": row.partitions, "replication_factor": ONE_REPLICA})
        return

    def done(created: Topic | Exception) -> None:
        if isinstance(created, Exception):
            outcomes.set(index, {"name": asked.name} | told(created))
        else:
            outcomes.set(index, _created(created, context))

    topics.create(asked.name, partitions, settings, now_ms=context.now_ms, done=done)


def _created(topic: Topic, context: Context) -> dict[str, Any]:
    configs = [
        {
            "name": row["name"],
            "value": row["value"],
            "read_only": row.get("read_only", False),
            "config_source": row["config_source"],
        }
        for row in topic_configs(topic, context)
    ]
    return {
        "name": topic.name,
        "topic_id": topic.id,
        "num_partitions": topic.partitions,
        "replication_factor": ONE_REPLICA,
        "configs": configs,
    }


def _partitions(asked: Any, context: Context) -> int | None:
    """How many partitions are wanted; None for as many as is usual."""
    if asked.assignments:
        if asked.num_partitions != USUAL or asked.replication_factor != USUAL:
            raise CodeError("INVALID_REQUEST", "replicas are assigned: partitions and replicas cannot be counted too")
        numbers = sorted(each.partition_index for each in asked.assignments)
        if numbers != list(range(len(numbers))):
            raise CodeError("INVALID_REPLICA_ASSIGNMENT", f"partitions must count from 0, not {numbers[:10]}")
        check_replicas([each.broker_ids for each in asked.assignments], context)
        return len(numbers)
    if asked.replication_factor not in (USUAL, ONE_REPLICA):
        text = f"there is one broker, and so one replica, not {asked.replication_factor}"
        raise CodeError("INVALID_REPLICATION_FACTOR", text)
    return None if asked.num_partitions == USUAL else int(asked.num_partitions)


def check_replicas(assigned: Sequence[Sequence[int]], context: Context) -> None:
    """There is one broker: every partition is its."""
    node_id = context.door.node_id
    if any(list(brokers) != [node_id] for brokers in assigned):
        raise CodeError("INVALID_REPLICA_ASSIGNMENT", f"there is one broker, {node_id}")


def _twice(names: Sequence[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def _check_once(name: str, twice: set[str]) -> None:
    if name in twice:
        raise CodeError("INVALID_REQUEST", f"{name} is named twice")


# Growing


def create_partitions(request: Any, context: Context) -> None:
    """Give topics more partitions."""
    twice = _twice([topic.name for topic in request.topics])
    asked = list({topic.name: topic for topic in request.topics}.values())
    outcomes: Outcomes[dict[str, Any]] = Outcomes(len(asked), lambda rows: context.answer(results=rows))
    for index, topic in enumerate(asked):
        try:
            _check_once(topic.name, twice)
            _grow(index, topic, request.validate_only, outcomes, context)
        except (CodeError, PenstockError) as error:
            outcomes.set(index, {"name": topic.name} | told(error))
    outcomes.seal()


def _grow(index: int, asked: Any, only_check: bool, outcomes: Outcomes[dict[str, Any]], context: Context) -> None:
    topics = context.broker.topics
    topic = topics.plan_growth(asked.name, asked.count)
    if asked.assignments is not None:
        added = asked.count - topic.partitions
        if len(asked.assignments) != added:
            text = f"{added} partitions are added, and {len(asked.assignments)} are assigned"
            raise CodeError("INVALID_REPLICA_ASSIGNMENT", text)
        check_replicas([each.broker_ids for each in asked.assignments], context)
    if only_check:
        outcomes.set(index, {"name": asked.name} | told(None))
        return

    def done(grown: Topic | Exception) -> None:
        outcomes.set(index, {"name": asked.name} | told(grown if isinstance(grown, Exception) else None))

    topics.grow(asked.name, asked.count, done)


# Deleting


def delete_topics(request: Any, context: Context) -> None:
    """Delete topics, by name or by id."""
    names = getattr(request, "topic_names", None)
    asked = [(name, None) for name in names] if names is not None else [(t.name, t.topic_id) for t in request.topics]
    outcomes: Outcomes[dict[str, Any]] = Outcomes(len(asked), lambda rows: context.answer(responses=rows))
    for index, (name, topic_id) in enumerate(asked):
        row = {"name": name, "topic_id": topic_id}
        try:
            topic = _deletable(name, topic_id, context)
            row = {"name": topic.name, "topic_id": topic.id}

            def done(deleted: Topic | Exception, index: int = index, row: dict[str, Any] = row) -> None:
                outcomes.set(index, row | told(deleted if isinstance(deleted, Exception) else None))

            context.broker.topics.delete(topic.name, done)
        except (CodeError, PenstockError) as error:
            outcomes.set(index, row | told(error))
    outcomes.seal()


def _deletable(name: str | None, topic_id: Any, context: Context) -> Topic:
    topics = context.broker.topics
    if name is not None:
        if topic_id is not None:
            raise CodeError("INVALID_REQUEST", "a topic is named by its name or by its id")
        return topics.get(name)
    topic = topics.by_id(topic_id) if topic_id is not None else None
    if topic is None:
        raise CodeError("UNKNOWN_TOPIC_ID", "no topic has this id")
    return topic


def delete_records(request: Any, context: Context) -> None:
    """Cut logs: everything before a position goes."""
    asked = [(topic.name, each) for topic in request.topics for each in topic.partitions]

    def finish(rows: Sequence[dict[str, Any]]) -> None:
        left = iter(rows)
        topics = [
            {"name": topic.name, "partitions": [next(left) for _ in topic.partitions]} for topic in request.topics
        ]
        context.answer(topics=topics)

    outcomes: Outcomes[dict[str, Any]] = Outcomes(len(asked), finish)
    for index, (name, each) in enumerate(asked):

        def done(start: int | Exception, index: int = index, number: int = each.partition_index) -> None:
            failed = isinstance(start, Exception)
            row = {"partition_index": number, "low_watermark": NO_WATERMARK if failed else start}
            outcomes.set(index, row | {"error_code": code_of(start) if isinstance(start, Exception) else NONE})

        try:
            context.broker.partition(name, each.partition_index).delete_before(each.offset, done)
        except PenstockError as error:
            done(error)
    outcomes.seal()


# What tools ask beside


def elect_leaders(request: Any, context: Context) -> None:
    """There is one broker, which leads already."""
    results = []
    for topic in request.topic_partitions or ():
        rows = [{"partition_id": number} | _elected(topic.topic, number, context) for number in topic.partitions]
        results.append({"topic": topic.topic, "partition_result": rows})
    context.answer(replica_election_results=results)


def _elected(name: str, number: int, context: Context) -> dict[str, Any]:
    topic = context.broker.topics.find(name)
    if topic is None or not 0 <= number < topic.partitions:
        return told(CodeError("UNKNOWN_TOPIC_OR_PARTITION", "there is no such partition"))
    return told(CodeError("ELECTION_NOT_NEEDED", "the one broker leads already"))


def list_partition_reassignments(request: Any, context: Context) -> None:
    """Nothing is ever moved."""
    context.answer(topics=())


def describe_log_dirs(request: Any, context: Context) -> None:
    """How large partitions are; a few of them in each turn of the loop, since each may have to be opened first."""
    topics = context.broker.topics
    if request.topics is None:
        asked = [(topic.name, range(topic.partitions)) for topic in topics]
    else:
        asked = [(each.topic, each.partitions) for each in request.topics]
    rows: list[dict[str, Any]] = []
    in_steps(context, _measure(asked, rows, context), lambda: _answer_dirs(rows, context))


def _measure(asked: Sequence[tuple[str, Sequence[int]]], rows: list[dict[str, Any]], context: Context) -> Iterator[int]:
    measured = 0
    for name, numbers in asked:
        partitions = []
        for number in numbers:
            try:
                size = context.broker.partition(name, number).log.size
            except PenstockError:
                continue
            partitions.append({"partition_index": number, "partition_size": size, "offset_lag": 0})
            measured += 1
            if measured % PARTITIONS_PER_TURN == 0:
                yield measured
        if partitions:
            rows.append({"name": name, "partitions": partitions})


def _answer_dirs(rows: list[dict[str, Any]], context: Context) -> None:
    folder = context.broker.settings.folder
    disk = os.statvfs(folder)
    context.answer(
        results=[
            {
                "log_dir": str(folder),
                "topics": rows,
                "total_bytes": disk.f_blocks * disk.f_frsize,
                "usable_bytes": disk.f_bavail * disk.f_frsize,
            }
        ]
    )
