"""Settings as Kafka's tools see them: DescribeConfigs, IncrementalAlterConfigs, AlterConfigs.

| resource | name        | what is shown                                                 | what can be set          |
|----------|-------------|---------------------------------------------------------------|--------------------------|
| topic    | the topic's | what holds for it, and where that comes from                  | everything but the fixed |
| topic    | a/b/*       | what holds for topics of the namespace a/b                    | the same                 |
| broker   | its number  | what topics get unless they say otherwise; how it was started | what topics get          |
| broker   | empty       | what was set for topics at run time                           | what topics get          |
| group    | the group's | its entry filters                                             | its entry filters        |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from penstock.broker.names import check_namespace
from penstock.broker.refusals import Refusal, Refused
from penstock.broker.server.kafka import codec
from penstock.broker.server.kafka.codes import NONE, code_of
from penstock.broker.server.kafka.config_names import (
    BOOLEAN,
    BY_BROKER_NAME,
    BY_TOPIC_NAME,
    FIXED,
    INT,
    KEPT,
    LONG,
    STRING,
    TABLE,
    Change,
    ConfigName,
    kept_of,
)
from penstock.broker.server.kafka.dispatch import Context
from penstock.broker.server.kafka.outcomes import Outcomes, in_steps
from penstock.broker.settings import TOPIC_TABLE, topic_setting
from penstock.broker.store import Scope
from penstock.broker.topics import BROKER, Topic
from penstock.errors import PenstockError
from penstock.wire.kafka.writer import writer_of

TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
FROM_TOPIC, FROM_BROKER, FROM_DEFAULTS, FROM_START, FROM_NOBODY, FROM_GROUP = 1, 2, 3, 4, 5, 8
RESOURCES_PER_TURN: Final = 20
LIST_CONFIG: Final = "cleanup.policy"
FILTERS: Final = "penstock.entry.filters"
ALL_OF: Final = "/*"
"""What the name of a namespace ends with where a topic's is expected."""
DEFAULTS: Final = {row.name: row.default for row in TOPIC_TABLE}


# Describing


def describe_configs(request: Any, context: Context) -> None:
    """Settings and where they come from; some resources in each turn of the loop."""
    results: list[bytes] = []
    in_steps(context, _describe(request, results, context), lambda: context.answer(results=results))


def _describe(request: Any, results: list[bytes], context: Context) -> Iterator[int]:
    kind = codec.part_of(context.api, context.version, "response", "DescribeConfigsResult")
    write = writer_of(kind)  # type: ignore[arg-type]
    for number, asked in enumerate(request.resources, 1):
        row = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}
        try:
            row |= {"error_code": NONE, "configs": _described(asked, request, context)}
        except PenstockError as error:
            row |= {"error_code": code_of(error), "error_message": str(error)}
        out = bytearray()
        write(out, row)
        results.append(bytes(out))
        if number % RESOURCES_PER_TURN == 0:
            yield number


def _described(asked: Any, request: Any, context: Context) -> list[dict[str, Any]]:
    if asked.resource_type == TOPIC_RESOURCE and asked.resource_name.endswith(ALL_OF):
        rows = _namespace_configs(asked.resource_name.removesuffix(ALL_OF), context)
    elif asked.resource_type == TOPIC_RESOURCE:
        rows = topic_configs(context.broker.topics.get(asked.resource_name), context)
    elif asked.resource_type == BROKER_RESOURCE:
        rows = _broker_configs(asked.resource_name, context)
    elif asked.resource_type == GROUP_RESOURCE:
        rows = _group_configs(asked.resource_name, context)
    else:
        raise Refused(Refusal.BAD_REQUEST, f"there are no settings for resources of type {asked.resource_type}")
    wanted = asked.configuration_keys
    if wanted:
        rows = [row for row in rows if row["name"] in wanted]
    if not request.include_synonyms:
        rows = [row | {"synonyms": ()} for row in rows]
    if not getattr(request, "include_documentation", False):
        rows = [row | {"documentation": None} for row in rows]
    return rows


def topic_configs(topic: Topic, context: Context) -> list[dict[str, Any]]:
    """What holds for a topic."""
    topics = context.broker.topics
    layers: list[tuple[int, Mapping[str, object]]] = [
        (FROM_TOPIC, topics.own(Scope("topic", topic.name))),
        (FROM_TOPIC, topics.own(Scope("namespace", topic.where.namespace))),
        *_broker_layers(context),
    ]
    rows = [_row(config, config.topic_name, layers) for config in TABLE]
    rows += [_constant(name, value, kind) for name, (value, kind) in FIXED.items()]
    rows += _kept_rows(kept_of(topics.own(Scope("topic", topic.name))))
    return sorted(rows, key=lambda row: str(row["name"]))


def _namespace_configs(namespace: str, context: Context) -> list[dict[str, Any]]:
    own = context.broker.topics.own(Scope("namespace", check_namespace(namespace)))
    layers = [(FROM_TOPIC, own), *_broker_layers(context)]
    return [_row(config, config.topic_name, layers) for config in TABLE]


def _broker_layers(context: Context) -> list[tuple[int, Mapping[str, object]]]:
    broker = context.broker
    return [
        (FROM_DEFAULTS, broker.topics.own(BROKER)),
        (FROM_START, broker.settings.topics),
        (FROM_NOBODY, DEFAULTS),
    ]


def _row(config: ConfigName, name: str, layers: Iterable[tuple[int, Mapping[str, object]]]) -> dict[str, Any]:
    """A setting, with every place where something was said about it, the nearest first."""
    said = [(source, values[config.setting]) for source, values in layers if config.setting in values]
    synonyms = [
        {
            "name": config.topic_name if source == FROM_TOPIC else config.broker_name,
            "value": config.show(value),
            "source": source,
        }
        for source, value in said
    ]
    return {
        "name": name,
        "value": config.show(said[0][1]),
        "config_source": said[0][0],
        "synonyms": synonyms,
        "config_type": config.kind,
        "documentation": topic_setting(config.setting).text,
    }


def _kept_rows(kept: Mapping[str, str]) -> list[dict[str, Any]]:
    rows = []
    for name, known in KEPT.items():
        said = [(FROM_TOPIC, kept[name])] if name in kept else []
        said.append((FROM_NOBODY, known.default))
        rows.append(
            {
                "name": name,
                "value": said[0][1],
                "config_source": said[0][0],
                "synonyms": [{"name": name, "value": value, "source": source} for source, value in said],
                "config_type": known.kind,
            }
        )
    return rows


def _constant(name: str, value: str, kind: int, source: int = FROM_NOBODY) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "read_only": True,
        "config_source": source,
        "config_type": kind,
    }


def _broker_configs(name: str, context: Context) -> list[dict[str, Any]]:
    if not name:
        own = context.broker.topics.own(BROKER)
        layers = [(FROM_DEFAULTS, own)]
        return [_row(config, config.broker_name, layers) for config in TABLE if config.setting in own]
    _check_node(name, context)
    host, port = context.address
    settings = context.broker.settings
    started: list[tuple[str, object, int]] = [
        ("node.id", settings.node_id, INT),
        ("broker.id", settings.node_id, INT),
        ("log.dirs", settings.folder, STRING),
        ("advertised.listeners", f"PLAINTEXT://{host}:{port}", STRING),
        ("auto.create.topics.enable", settings.topics_auto_create, BOOLEAN),
        ("num.partitions", settings.partitions_default, INT),
        ("default.replication.factor", 1, INT),
        ("transaction.max.timeout.ms", settings.transaction_timeout_max_ms, INT),
        ("transactional.id.expiration.ms", settings.transactional_id_expiration_ms, INT),
        ("producer.id.expiration.ms", settings.producer_expiration_ms, INT),
        ("log.retention.check.interval.ms", settings.retention_check_ms, LONG),
        ("socket.request.max.bytes", context.door.limits.frame_bytes_max, INT),
        ("connections.max.idle.ms", round(context.door.limits.idle_s * 1000), LONG),
        ("max.connections", context.door.limits.connections_max, INT),
        ("penstock.fsync", settings.fsync, STRING),
    ]
    rows = [
        _constant(name, str(value).lower() if kind == BOOLEAN else str(value), kind, FROM_START)
        for name, value, kind in started
    ]
    rows += [_row(config, config.broker_name, _broker_layers(context)) for config in TABLE]
    return sorted(rows, key=lambda row: str(row["name"]))


def _check_node(name: str, context: Context) -> None:
    if name != str(context.door.node_id):
        raise Refused(Refusal.BAD_REQUEST, f"this is broker {context.door.node_id}, not {name!r}")


def _group_configs(name: str, context: Context) -> list[dict[str, Any]]:
    own = context.broker.topics.own(Scope("group", name))
    config = BY_TOPIC_NAME[FILTERS]
    return [_row(config, FILTERS, [(FROM_GROUP, own), (FROM_NOBODY, DEFAULTS)])]


# Changing


def incremental_alter_configs(request: Any, context: Context) -> None:
    """Set some settings, take back others, and leave the rest."""
    _alter(request, context, _incremental)


def alter_configs(request: Any, context: Context) -> None:
    """Set these settings, and take back all others."""
    _alter(request, context, _whole)


def _alter(request: Any, context: Context, plan: Any) -> None:
    resources = request.resources
    outcomes: Outcomes[Exception | None] = Outcomes(len(resources), lambda told: _answer(resources, told, context))
    for index, asked in enumerate(resources):
        try:
            scope = _scope(asked, context)
            values, unset = plan(asked, scope, context)
            if request.validate_only:
                context.broker.topics.plan_change(scope, values, unset)
                outcomes.set(index, None)
            else:
                done = lambda error, index=index: outcomes.set(index, error)  # noqa: E731
                context.broker.topics.change(scope, values, unset, done)
        except PenstockError as error:
            outcomes.set(index, error)
    outcomes.seal()


def _scope(asked: Any, context: Context) -> Scope:
    if asked.resource_type == TOPIC_RESOURCE and asked.resource_name.endswith(ALL_OF):
        return Scope("namespace", asked.resource_name.removesuffix(ALL_OF))
    if asked.resource_type == TOPIC_RESOURCE:
        return Scope("topic", context.broker.topics.get(asked.resource_name).name)
    if asked.resource_type == BROKER_RESOURCE:
        if asked.resource_name:
            _check_node(asked.resource_name, context)
        return BROKER
    if asked.resource_type == GROUP_RESOURCE:
        return Scope("group", asked.resource_name)
    raise Refused(Refusal.BAD_REQUEST, f"nothing can be set for resources of type {asked.resource_type}")


def _incremental(asked: Any, scope: Scope, context: Context) -> tuple[dict[str, object], list[str]]:
    change, named = change_of(scope, context), set()
    for config in asked.configs:
        if config.name in named:
            raise Refused(Refusal.BAD_REQUEST, f"{config.name} is named twice")
        named.add(config.name)
        if config.config_operation == SET:
            change.set(config.name, config.value)
        elif config.config_operation == DELETE:
            change.drop(config.name)
        else:
            _check_list(config)
    return change.finish()


def _check_list(config: Any) -> None:
    """The one list there is holds one word, which can be added, but not taken out."""
    is_list = config.name == LIST_CONFIG and config.config_operation in (APPEND, SUBTRACT)
    if not is_list or config.config_operation == SUBTRACT or (config.value or "").strip() != "delete":
        raise Refused(Refusal.BAD_SETTING, f"{config.value} cannot be added to {config.name}, or taken out of it")


def _whole(asked: Any, scope: Scope, context: Context) -> tuple[dict[str, object], list[str]]:
    change = change_of(scope, context, anew=True)
    for config in asked.configs:
        change.set(config.name, config.value)
    values, _unset = change.finish()
    return values, [name for name in context.broker.topics.own(scope) if name not in values]


def change_of(scope: Scope, context: Context, anew: bool = False) -> Change:
    """An empty change for this scope; `anew`: nothing that is kept stays."""
    kept = {} if anew else kept_of(context.broker.topics.own(scope))
    rows = BY_BROKER_NAME if scope == BROKER else BY_TOPIC_NAME
    return Change(rows, kept, context.broker.settings.fsync != "system")


def _answer(resources: Any, told: Iterable[Exception | None], context: Context) -> None:
    responses = [
        {
            "error_code": NONE if error is None else code_of(error),
            "error_message": None if error is None else str(error),
            "resource_type": asked.resource_type,
            "resource_name": asked.resource_name,
        }
        for asked, error in zip(resources, told, strict=True)
    ]
    context.answer(responses=responses)
