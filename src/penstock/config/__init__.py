"""Options as they are given, and the values that the rest of Penstock reads.

Reads options by the table in `options`: under Penstock's own names or another system's, as Python values or as text.
What comes out is `Options`: one frozen section per scope, each field checked. Combinations are checked in one place,
`validate`. Nothing here knows a codec, a socket or a protocol; a codec's range of levels is checked where codecs are.
"""

from __future__ import annotations

import dataclasses
import difflib
import reprlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from penstock.config.options import (
    NOT_OPTIONS,
    OPTIONS,
    SPELLINGS,
    Acks,
    Alias,
    Compression,
    Delivery,
    Hash,
    Isolation,
    OnGap,
    Option,
    PropertyOrder,
    Repack,
    Scope,
    WhenFull,
)
from penstock.errors import ConfigError, UnknownOptionError

IDEMPOTENT_IN_FLIGHT_MAX: Final = 5

_DEFAULTS: Final[Mapping[str, Any]] = {option.name: option.default for option in OPTIONS}
_SCOPES: Final[Mapping[Scope, str]] = {
    Scope.CLIENT: "the client",
    Scope.PRODUCER: "a producer",
    Scope.BATCH: "a producer's batches (BatchPolicy)",
    Scope.GATE: "a producer's gate (BatchIo)",
    Scope.READER: "a reader",
    Scope.REPLICATOR: "a replicator",
}


class _Section:
    """What the sections have in common: each field is read by its row of the table, also when made by hand."""

    __slots__ = ()
    scope: ClassVar[Scope]

    def __post_init__(self) -> None:
        for option in OPTIONS:
            if option.scope is self.scope:
                given = getattr(self, option.attribute)
                object.__setattr__(self, option.attribute, _read(option, option.attribute, given))


@dataclass(frozen=True, slots=True)
class ClientOptions(_Section):
    """What a client reads."""

    scope: ClassVar[Scope] = Scope.CLIENT

    client_id: str = _DEFAULTS["client_id"]
    total_bytes_max: int = _DEFAULTS["total_bytes_max"]
    lanes_max: int = _DEFAULTS["lanes_max"]
    lane_idle_ms: float = _DEFAULTS["lane_idle_ms"]
    request_bytes_max: int = _DEFAULTS["request_bytes_max"]
    frame_bytes_max: int = _DEFAULTS["frame_bytes_max"]
    in_flight_max: int = _DEFAULTS["in_flight_max"]
    connect_timeout_ms: float = _DEFAULTS["connect_timeout_ms"]
    request_timeout_ms: float = _DEFAULTS["request_timeout_ms"]
    retry_backoff_ms: float = _DEFAULTS["retry_backoff_ms"]
    retry_backoff_max_ms: float = _DEFAULTS["retry_backoff_max_ms"]
    metadata_age_max_ms: float = _DEFAULTS["metadata_age_max_ms"]
    io_memory_max: int = _DEFAULTS["io_memory_max"]


@dataclass(frozen=True, slots=True)
class ProducerOptions(_Section):
    """What a producer reads."""

    scope: ClassVar[Scope] = Scope.PRODUCER

    acks: Acks = _DEFAULTS["acks"]
    idempotence: bool = _DEFAULTS["idempotence"]
    delivery_timeout_ms: float = _DEFAULTS["delivery_timeout_ms"]
    when_full: WhenFull = _DEFAULTS["when_full"]
    full_timeout_ms: float = _DEFAULTS["full_timeout_ms"]
    message_bytes_max: int = _DEFAULTS["message_bytes_max"]
    compression: Compression = _DEFAULTS["compression"]
    compression_level: int | None = _DEFAULTS["compression_level"]
    unknown_topic_ms: float = _DEFAULTS["unknown_topic_ms"]
    hash: Hash = _DEFAULTS["hash"]
    transactional_id: str | None = _DEFAULTS["transactional_id"]
    transaction_timeout_ms: float = _DEFAULTS["transaction_timeout_ms"]


@dataclass(frozen=True, slots=True)
class BatchPolicy(_Section):
    """When a producer's batch is sealed, and which properties its messages share or list."""

    scope: ClassVar[Scope] = Scope.BATCH

    bytes_max: int = _DEFAULTS["batch_bytes_max"]
    count_max: int = _DEFAULTS["batch_count_max"]
    delay_ms: float = _DEFAULTS["batch_delay_ms"]
    # Left out of the hash only, since mappings have none.
    same_properties: Mapping[str, Collection[str]] = field(default_factory=dict, hash=False)
    listed_properties: Collection[str] = _DEFAULTS["listed_properties"]
    listed_values_max: int = _DEFAULTS["listed_values_max"]
    order: PropertyOrder = _DEFAULTS["property_order"]
    groups_max: int = _DEFAULTS["property_groups_max"]


@dataclass(frozen=True, slots=True)
class BatchIo(_Section):
    """How long and how many bytes of frames the gate of a connection holds for one write."""

    scope: ClassVar[Scope] = Scope.GATE

    delay_ms: float = _DEFAULTS["io_delay_ms"]
    bytes_max: int = _DEFAULTS["io_bytes_max"]

    @property
    def enabled(self) -> bool:
        """Whether frames wait at all."""
        return self.delay_ms > 0


@dataclass(frozen=True, slots=True)
class ReaderOptions(_Section):
    """What a reader reads."""

    scope: ClassVar[Scope] = Scope.READER

    decompressed_bytes_max: int = _DEFAULTS["decompressed_bytes_max"]
    prefetch_bytes_max: int = _DEFAULTS["prefetch_bytes_max"]
    fetch_bytes_max: int = _DEFAULTS["fetch_bytes_max"]
    partition_bytes_max: int = _DEFAULTS["partition_bytes_max"]
    fetch_bytes_min: int = _DEFAULTS["fetch_bytes_min"]
    fetch_wait_ms: float = _DEFAULTS["fetch_wait_ms"]
    isolation: Isolation = _DEFAULTS["isolation"]
    verify_checksums: bool = _DEFAULTS["verify_checksums"]
    on_gap: OnGap = _DEFAULTS["on_gap"]
    trouble_ms_max: float | None = _DEFAULTS["trouble_ms_max"]


@dataclass(frozen=True, slots=True)
class ReplicatorOptions(_Section):
    """What a replicator reads."""

    scope: ClassVar[Scope] = Scope.REPLICATOR

    delivery: Delivery = _DEFAULTS["delivery"]
    commit_interval_ms: float = _DEFAULTS["commit_interval_ms"]
    transaction_bytes_max: int = _DEFAULTS["transaction_bytes_max"]
    repack: Repack = _DEFAULTS["repack"]
    copy_bytes_max: int = _DEFAULTS["copy_bytes_max"]
    copy_entries_max: int = _DEFAULTS["copy_entries_max"]
    messages_per_second_max: int | None = _DEFAULTS["messages_per_second_max"]
    bytes_per_second_max: int | None = _DEFAULTS["bytes_per_second_max"]
    renew_ms: float = _DEFAULTS["renew_ms"]
    discover_ms: float = _DEFAULTS["discover_ms"]


@dataclass(frozen=True, slots=True)
class Options:
    """All options with their values, a section per scope."""

    client: ClientOptions = field(default_factory=ClientOptions)
    producer: ProducerOptions = field(default_factory=ProducerOptions)
    batch: BatchPolicy = field(default_factory=BatchPolicy)
    io: BatchIo = field(default_factory=BatchIo)
    reader: ReaderOptions = field(default_factory=ReaderOptions)
    replicator: ReplicatorOptions = field(default_factory=ReplicatorOptions)


def parse(
    given: Mapping[str, object], scopes: Collection[Scope] = tuple(Scope), base: Options | None = None
) -> Options:
    """The options of `base` (by default the table's) with those given in place, each checked, and all together.

    Only options of `scopes` are taken: a producer that is given an option of its client says so instead of ignoring it.
    """
    base = Options() if base is None else base
    sections: defaultdict[Scope, dict[str, object]] = defaultdict(dict)
    spelled_before: dict[str, str] = {}
    for spelled, value in given.items():
        option, alias = _find(spelled)
        if option.scope not in scopes:
            raise ConfigError(f"{_told(spelled, option)} is an option of {_SCOPES[option.scope]}: give it there")
        if option.name in spelled_before:
            before = spelled_before[option.name]
            raise ConfigError(f"{before} and {spelled} are the same option, {option.name}: give one of them")
        spelled_before[option.name] = spelled
        sections[option.scope][option.attribute] = _read(option, spelled, value, alias)
    changes: dict[str, Any] = {
        scope.value: dataclasses.replace(getattr(base, scope.value), **fields) for scope, fields in sections.items()
    }
    options = dataclasses.replace(base, **changes)
    validate(options)
    return options


def validate(options: Options) -> None:
    """Raise ConfigError with every combination of options that cannot work, and what to do about each."""
    problems = [*_delivery_problems(options), *_memory_problems(options), *_property_problems(options.batch)]
    if problems:
        raise ConfigError("\n".join(problems))


def print_docs() -> str:
    """The whole table as Markdown, a section per scope."""
    parts = []
    for scope in Scope:
        rows = [_doc_row(option) for option in OPTIONS if option.scope is scope]
        parts += [
            f"## Options of {_SCOPES[scope]}\n",
            "| name | type | default | takes | meaning | known elsewhere as |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    parts += ["## Names that are no options here\n", "| name | instead |", "|---|---|"]
    parts += [f"| `{name}` | {instead} |" for name, instead in NOT_OPTIONS.items()]
    return "\n".join(parts) + "\n"


def _find(spelled: str) -> tuple[Option, Alias | None]:
    if spelled in SPELLINGS:
        return SPELLINGS[spelled]
    for name, instead in NOT_OPTIONS.items():
        if spelled in (name, name.replace(".", "_")):
            raise UnknownOptionError(f"{spelled} is no option of Penstock: {instead}")
    lowered = {name.lower(): name for name in SPELLINGS}
    nearest = difflib.get_close_matches(spelled.lower(), lowered, n=1)
    if not nearest:
        raise UnknownOptionError(f"there is no option {spelled!r}, nor one with a name like it")
    name = lowered[nearest[0]]
    raise UnknownOptionError(f"there is no option {spelled!r}; the nearest is {_told(name, SPELLINGS[name][0])}")


def _read(option: Option, spelled: str, value: object, alias: Alias | None = None) -> object:
    try:
        converted = alias.convert(value) if alias and alias.convert else value
        if converted is None and option.default is None:
            return None
        return option.kind.read(converted)
    except (TypeError, ValueError, OverflowError) as error:
        note = f" ({alias.note})" if alias and alias.note else ""
        stands_for = "" if spelled == option.name else f"it stands for {option.name}{note}, which "
        given = f"{spelled}={reprlib.repr(value)}"
        raise ConfigError(f"{given} is not possible: {stands_for}takes {option.kind.allowed}") from error


def _told(spelled: str, option: Option) -> str:
    return spelled if spelled == option.name else f"{spelled} ({option.name})"


def _delivery_problems(options: Options) -> Iterator[str]:
    client, producer = options.client, options.producer
    if producer.idempotence and producer.acks != "all":
        yield f"idempotence needs acks=all, not {producer.acks}: set acks=all, or idempotence=false"
    if producer.transactional_id is not None and not producer.idempotence:
        yield "transactional_id needs idempotence: set idempotence=true, or give no transactional_id"
    if client.retry_backoff_ms > client.retry_backoff_max_ms:
        yield (
            f"retry_backoff_ms={client.retry_backoff_ms} is above retry_backoff_max_ms={client.retry_backoff_max_ms}: "
            "lower the first or raise the second"
        )
    needed_ms = options.batch.delay_ms + options.io.delay_ms + client.request_timeout_ms
    if producer.delivery_timeout_ms < needed_ms:
        yield (
            f"delivery_timeout_ms={producer.delivery_timeout_ms} leaves no time for one attempt, which takes up to "
            f"batch_delay_ms + io_delay_ms + request_timeout_ms = {needed_ms}: raise it, or lower request_timeout_ms"
        )


def _memory_problems(options: Options) -> Iterator[str]:
    total = options.client.total_bytes_max
    limits = {"message_bytes_max": options.producer.message_bytes_max, "batch_bytes_max": options.batch.bytes_max}
    for name, limit in limits.items():
        if limit > total and options.producer.when_full != "direct":
            yield (
                f"{name}={limit} is above total_bytes_max={total}, so that there may never be room for it: lower it, "
                "raise total_bytes_max, or set when_full=direct"
            )


def _property_problems(policy: BatchPolicy) -> Iterator[str]:
    both = sorted(set(policy.same_properties) & set(policy.listed_properties))
    if both:
        yield (
            f"{', '.join(both)} in same_properties and in listed_properties: take it out of listed_properties, since "
            "a batch of one value has nothing to list"
        )


def _doc_row(option: Option) -> str:
    default = "none" if option.default is None else option.kind.show(option.default)
    known = [f"`{alias.name}` ({alias.systems}{'; ' if alias.note else ''}{alias.note})" for alias in option.aliases]
    cells = [f"`{option.name}`", option.kind.label, default, option.kind.allowed, option.text, ", ".join(known)]
    return f"| {' | '.join(cells)} |"
