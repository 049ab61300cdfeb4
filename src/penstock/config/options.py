"""The table of options: one row per option, and the names under which users of other systems know it.

This is the one source of names, kinds, defaults, texts and aliases; `config` reads options by it and prints its
documentation. The order of the rows is the order of the documentation.

An alias is a name that really exists in Kafka's Java client, librdkafka (which confluent-kafka wraps), Pulsar's Java or
Python client, RocketMQ's Java client, or in one of the two Pulsar proposals Penstock takes up (batch I/O, PIP-191).
Where the other system counts in another unit or asks another question, the alias carries the conversion.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from penstock.config.kinds import (
    GIB,
    INT32_MAX,
    KIB,
    MB,
    MIB,
    TIB,
    Choice,
    Flag,
    Kind,
    Names,
    Text,
    ValueLists,
    count,
    millis,
    read_number,
    size,
)

Acks = Literal["all", "leader", "none"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Hash = Literal["murmur2", "crc32"]
Isolation = Literal["committed", "uncommitted"]
OnGap = Literal["stop", "skip"]
PropertyOrder = Literal["lane", "group"]
WhenFull = Literal["wait", "direct", "fail"]
Delivery = Literal["exactly-once", "at-least-once"]
Repack = Literal["auto", "never", "always"]


class Scope(enum.Enum):
    """Who reads an option; the value is the section of `config.Options` that holds it."""

    CLIENT = "client"
    PRODUCER = "producer"
    BATCH = "batch"
    GATE = "io"
    READER = "reader"
    REPLICATOR = "replicator"


@dataclass(frozen=True, slots=True)
class Alias:
    """Another system's name for an option; `note` says what `convert` does."""

    name: str
    systems: str
    convert: Callable[[object], object] | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """One row: an option that is None by default may be given as None."""

    name: str
    scope: Scope
    kind: Kind
    default: object
    text: str
    aliases: tuple[Alias, ...] = ()
    field: str = ""

    @property
    def attribute(self) -> str:
        """The name inside its section, where the scope's own prefix would only repeat itself."""
        return self.field or self.name


def _times(factor: int) -> Callable[[object], object]:
    return lambda value: read_number(value) * factor


def _divided(divisor: int) -> Callable[[object], object]:
    return lambda value: read_number(value) / divisor


def _wait_or_fail(value: object) -> object:
    return "wait" if Flag().read(value) else "fail"


def _level_or_default(value: object) -> object:
    level = read_number(value)
    return None if level == -1 else level


def _exactly_once(value: object) -> object:
    return {"enabled": "exactly-once", "disabled": "at-least-once"}.get(str(value))


def _hash_of_partitioner(value: object) -> object:
    """The others of librdkafka's partitioners treat messages without a key in ways of their own: none of them."""
    return {"murmur2_random": "murmur2", "consistent_random": "crc32"}.get(str(value))


_CLIENT: Final = (
    Option(
        "client_id",
        Scope.CLIENT,
        Text(255),
        "penstock",
        "The name brokers see. Clients of one process with the same id share one accumulator, memory budget and event "
        "loop.",
        (Alias("client.id", "Kafka, librdkafka"), Alias("instanceName", "RocketMQ")),
    ),
    Option(
        "total_bytes_max",
        Scope.CLIENT,
        size(1, TIB),
        32 * MIB,
        "Memory for messages that are not yet acknowledged, keys, properties and framing included, over all producers "
        "of the client. What happens above it is up to `when_full`.",
        (
            Alias("buffer.memory", "Kafka"),
            Alias("queue.buffering.max.kbytes", "librdkafka", _times(KIB), "in KiB"),
            Alias("memoryLimitBytes", "Pulsar"),
            Alias("totalBatchMaxBytes", "RocketMQ"),
            Alias("backPressureForAsyncSendSize", "RocketMQ"),
        ),
    ),
    Option(
        "lanes_max",
        Scope.CLIENT,
        count(1, 1_000_000),
        10_000,
        "How many lanes may be open at once. Only partitions in use have one.",
    ),
    Option(
        "lane_idle_ms",
        Scope.CLIENT,
        millis(1, INT32_MAX),
        60_000,
        "A lane that saw no message for this long is dropped and opened anew when one comes.",
    ),
    Option(
        "request_bytes_max",
        Scope.CLIENT,
        size(1, GIB),
        MIB,
        "How many bytes of batches for one broker are put into one request. A batch that is larger alone still goes, "
        "alone.",
    ),
    Option(
        "frame_bytes_max",
        Scope.CLIENT,
        size(KIB, INT32_MAX),
        100 * MB,
        "Largest frame taken from a broker. A larger one is refused before memory is given to it.",
        (Alias("receive.message.max.bytes", "librdkafka"),),
    ),
    Option(
        "in_flight_max",
        Scope.CLIENT,
        count(1, 1_000_000),
        5,
        "Unanswered requests per connection. Brokers remember 5 batches per producer and partition, so with "
        "idempotence a partition never has more than 5 of its batches in flight, however many requests are.",
        (
            Alias("max.in.flight.requests.per.connection", "Kafka, librdkafka"),
            Alias("max.in.flight", "librdkafka"),
        ),
    ),
    Option(
        "connect_timeout_ms",
        Scope.CLIENT,
        millis(1, INT32_MAX),
        10_000,
        "How long opening one connection may take.",
        (
            Alias("socket.connection.setup.timeout.ms", "Kafka, librdkafka"),
            Alias("connection_timeout_ms", "Pulsar"),
            Alias("connectionTimeoutMs", "Pulsar"),
        ),
    ),
    Option(
        "request_timeout_ms",
        Scope.CLIENT,
        millis(1, INT32_MAX),
        30_000,
        "How long a request may stay unanswered before its connection is given up and it is tried again.",
        (
            Alias("request.timeout.ms", "Kafka, librdkafka"),
            Alias("socket.timeout.ms", "librdkafka"),
            Alias("requestTimeoutMs", "Pulsar"),
            Alias("mqClientApiTimeout", "RocketMQ"),
        ),
    ),
    Option(
        "retry_backoff_ms",
        Scope.CLIENT,
        millis(0, INT32_MAX),
        100,
        "Pause before the first retry. It doubles with each further one and is jittered, so that clients do not come "
        "back together.",
        (
            Alias("retry.backoff.ms", "Kafka, librdkafka"),
            Alias("initialBackoffIntervalNanos", "Pulsar", _divided(1_000_000), "in nanoseconds"),
        ),
    ),
    Option(
        "retry_backoff_max_ms",
        Scope.CLIENT,
        millis(0, INT32_MAX),
        1000,
        "The pause between retries grows no longer than this.",
        (
            Alias("retry.backoff.max.ms", "Kafka, librdkafka"),
            Alias("maxBackoffIntervalNanos", "Pulsar", _divided(1_000_000), "in nanoseconds"),
        ),
    ),
    Option(
        "metadata_age_max_ms",
        Scope.CLIENT,
        millis(1, INT32_MAX),
        300_000,
        "Leaders and partitions are asked for anew after this time even when nothing failed; so added partitions are "
        "noticed.",
        (
            Alias("metadata.max.age.ms", "Kafka, librdkafka"),
            Alias("topic.metadata.refresh.interval.ms", "librdkafka"),
            Alias("autoUpdatePartitionsIntervalSeconds", "Pulsar", _times(1000), "in seconds"),
            Alias("pollNameServerInterval", "RocketMQ"),
        ),
    ),
    Option(
        "io_memory_max",
        Scope.CLIENT,
        size(0, TIB),
        16 * MIB,
        "Bytes that may wait in all gates of the client; above it frames are written at once. By default half of the "
        "default of `total_bytes_max`, so that waiting frames leave room for senders.",
        (Alias("maxMemoryUsageForBatchIOProducersInBytes", "Pulsar batch I/O"),),
    ),
)

_PRODUCER: Final = (
    Option(
        "acks",
        Scope.PRODUCER,
        Choice(get_args(Acks), {"-1": "all", "1": "leader", "0": "none"}),
        "all",
        "Who must have stored a message before it counts as sent: all replicas in sync, the leader alone, or nobody.",
        (Alias("request.required.acks", "librdkafka"),),
    ),
    Option(
        "idempotence",
        Scope.PRODUCER,
        Flag(),
        True,
        "Messages are numbered, so that a retry stores nothing twice and keeps the order of the lane.",
        (Alias("enable.idempotence", "Kafka, librdkafka"),),
    ),
    Option(
        "delivery_timeout_ms",
        Scope.PRODUCER,
        millis(1, INT32_MAX),
        120_000,
        "From `send` to the outcome, all waiting and all retries included.",
        (
            Alias("delivery.timeout.ms", "Kafka, librdkafka"),
            Alias("message.timeout.ms", "librdkafka"),
            Alias("send_timeout_millis", "Pulsar"),
            Alias("sendTimeoutMs", "Pulsar"),
            Alias("sendMsgTimeout", "RocketMQ"),
        ),
    ),
    Option(
        "when_full",
        Scope.PRODUCER,
        Choice(get_args(WhenFull)),
        "wait",
        "What `send` does above `total_bytes_max`: wait for room, write the message directly and unbatched, or fail. "
        "What is written directly may take as much again; above that it waits.",
        (
            Alias("block_if_queue_full", "Pulsar", _wait_or_fail, "true: wait, false: fail"),
            Alias("blockIfQueueFull", "Pulsar", _wait_or_fail, "true: wait, false: fail"),
        ),
    ),
    Option(
        "full_timeout_ms",
        Scope.PRODUCER,
        millis(0, INT32_MAX),
        60_000,
        "How long `send` waits for room: when `when_full` is wait, and when it is direct and twice `total_bytes_max` "
        "is used up. It never waits for anything else.",
        (Alias("max.block.ms", "Kafka"),),
    ),
    Option(
        "message_bytes_max",
        Scope.PRODUCER,
        size(1, GIB),
        MB,
        "Largest message, key, properties and framing included; a larger one is refused by `send`. The default is what "
        "a Kafka broker at its own default of 1,048,588 bytes takes for sure, uncompressed.",
        (
            Alias("max.request.size", "Kafka"),
            Alias("message.max.bytes", "librdkafka"),
            Alias("maxMessageSize", "RocketMQ"),
        ),
    ),
    Option(
        "compression",
        Scope.PRODUCER,
        Choice(get_args(Compression)),
        "lz4",
        "The codec of whole batches. lz4 costs little and about halves typical batches.",
        (
            Alias("compression.type", "Kafka, librdkafka"),
            Alias("compression.codec", "librdkafka"),
            Alias("compression_type", "Pulsar"),
            Alias("compressionType", "Pulsar"),
            Alias("compressType", "RocketMQ"),
        ),
    ),
    Option(
        "compression_level",
        Scope.PRODUCER,
        count(-131_072, 22),
        None,
        "The level in the codec's own terms; without one the codec's default. Each codec has a narrower range of its "
        "own.",
        (
            Alias("compression.level", "librdkafka", _level_or_default, "-1: the codec's default"),
            Alias("compressLevel", "RocketMQ"),
        ),
    ),
    Option(
        "unknown_topic_ms",
        Scope.PRODUCER,
        millis(0, INT32_MAX),
        10_000,
        "How long a topic that the cluster does not know may take to come into being; after it, what waits for it "
        "fails.",
        (Alias("topic.metadata.propagation.max.ms", "librdkafka"),),
    ),
    Option(
        "hash",
        Scope.PRODUCER,
        Choice(get_args(Hash)),
        "murmur2",
        "How a key chooses its partition on Kafka: murmur2 as Kafka's Java client, crc32 as librdkafka by default.",
        (
            Alias(
                "partitioner",
                "librdkafka",
                _hash_of_partitioner,
                "murmur2_random: murmur2, consistent_random: crc32",
            ),
        ),
    ),
    Option(
        "transactional_id",
        Scope.PRODUCER,
        Text(255),
        None,
        "Makes the producer transactional. Whoever takes the same id next fences this producer.",
        (Alias("transactional.id", "Kafka, librdkafka"),),
    ),
    Option(
        "transaction_timeout_ms",
        Scope.PRODUCER,
        millis(1, INT32_MAX),
        60_000,
        "The broker aborts a transaction that stays open for longer.",
        (Alias("transaction.timeout.ms", "Kafka, librdkafka"),),
    ),
)

_BATCH: Final = (
    Option(
        "batch_bytes_max",
        Scope.BATCH,
        size(0, GIB),
        256 * KIB,
        "A batch is sealed when it holds this many bytes, before compression; 0 sends each message alone. Larger "
        "batches were measured to bring nothing, smaller ones cost the broker more.",
        (
            Alias("batch.size", "Kafka, librdkafka"),
            Alias("batching_max_allowed_size_in_bytes", "Pulsar"),
            Alias("batchingMaxBytes", "Pulsar"),
            Alias("batchMaxBytes", "RocketMQ"),
        ),
        field="bytes_max",
    ),
    Option(
        "batch_count_max",
        Scope.BATCH,
        count(1, 1_000_000),
        32_767,
        "A batch is sealed when it holds this many messages; 1 turns batching off. The default is the most that every "
        "system stores correctly: RocketMQ's queues break above it.",
        (
            Alias("batch.num.messages", "librdkafka"),
            Alias("batching_max_messages", "Pulsar"),
            Alias("batchingMaxMessages", "Pulsar"),
        ),
        field="count_max",
    ),
    Option(
        "batch_delay_ms",
        Scope.BATCH,
        millis(0, 900_000),
        5,
        "A batch is sealed this long after its first message, full or not.",
        (
            Alias("linger.ms", "Kafka, librdkafka"),
            Alias("queue.buffering.max.ms", "librdkafka"),
            Alias("batching_max_publish_delay_ms", "Pulsar"),
            Alias("batchingMaxPublishDelayMicros", "Pulsar", _divided(1000), "in microseconds"),
            Alias("batchMaxDelayMs", "RocketMQ"),
        ),
        field="delay_ms",
    ),
    Option(
        "same_properties",
        Scope.BATCH,
        ValueLists(),
        {},
        "Properties whose value all messages of a batch share, with the values that count; any other value counts as "
        "absent. Filters can then judge a batch unopened; values that change often make tiny batches.",
        (Alias("restrictSameValuesInBatchProperties", "Pulsar PIP-191"),),
    ),
    Option(
        "listed_properties",
        Scope.BATCH,
        Names(),
        (),
        "Properties whose distinct values are listed with the batch, so that filters can skip it. Seals no batch.",
    ),
    Option(
        "listed_values_max",
        Scope.BATCH,
        count(1, 1000),
        16,
        "A batch with more distinct values of a listed property does not list them, and filters must open it.",
    ),
    Option(
        "property_order",
        Scope.BATCH,
        Choice(get_args(PropertyOrder)),
        "lane",
        "What a change of a same property does. lane: it seals the batch, and the order of the lane is kept; group: "
        "each combination of values has an open batch of its own, and only the order within it is kept.",
        field="order",
    ),
    Option(
        "property_groups_max",
        Scope.BATCH,
        count(1, 1000),
        16,
        "Open batches per lane when `property_order` is group; one more seals the oldest.",
        field="groups_max",
    ),
)

_GATE: Final = (
    Option(
        "io_delay_ms",
        Scope.GATE,
        millis(0, 60_000),
        0,
        "How long a frame may wait in the gate of its connection for others, to leave with them in one write; 0 writes "
        "each at once. Meant for many small requests.",
        (Alias("maxDelayMillis", "Pulsar batch I/O"),),
        field="delay_ms",
    ),
    Option(
        "io_bytes_max",
        Scope.GATE,
        size(1, GIB),
        MIB,
        "The gate opens when this many bytes wait in it.",
        (Alias("maxBatchSize", "Pulsar batch I/O"),),
        field="bytes_max",
    ),
)

_READER: Final = (
    Option(
        "decompressed_bytes_max",
        Scope.READER,
        size(1, INT32_MAX),
        128 * MIB,
        "What one batch may unpack to. Above it reading ends with an error instead of filling the memory.",
    ),
    Option(
        "prefetch_bytes_max",
        Scope.READER,
        size(64 * KIB, TIB),
        32 * MIB,
        "Bytes that a reader holds ready or has asked for, before they are handed out. All brokers share them, so that "
        "each can be asked while its last answer is consumed.",
        (Alias("queued.max.messages.kbytes", "librdkafka", _times(KIB), "in KiB"),),
    ),
    Option(
        "fetch_bytes_max",
        Scope.READER,
        size(1, INT32_MAX),
        8 * MIB,
        "Bytes of entries in one answer of a broker. An entry that is larger alone still comes, alone.",
        (Alias("fetch.max.bytes", "Kafka, librdkafka"),),
    ),
    Option(
        "partition_bytes_max",
        Scope.READER,
        size(1, INT32_MAX),
        MIB,
        "Bytes of entries of one partition in one answer. Larger ones were measured to be slower, since they fall out "
        "of the processor's cache before they are opened.",
        (
            Alias("max.partition.fetch.bytes", "Kafka, librdkafka"),
            Alias("fetch.message.max.bytes", "librdkafka"),
        ),
    ),
    Option(
        "fetch_bytes_min",
        Scope.READER,
        size(1, INT32_MAX),
        1,
        "A broker answers as soon as it has this much, or when `fetch_wait_ms` is over.",
        (Alias("fetch.min.bytes", "Kafka, librdkafka"),),
    ),
    Option(
        "fetch_wait_ms",
        Scope.READER,
        millis(0, INT32_MAX),
        500,
        "How long a broker waits for something to give, before it says that there is nothing; at most half of "
        "`request_timeout_ms`.",
        (Alias("fetch.max.wait.ms", "Kafka"), Alias("fetch.wait.max.ms", "librdkafka")),
    ),
    Option(
        "isolation",
        Scope.READER,
        Choice(get_args(Isolation), {"read_committed": "committed", "read_uncommitted": "uncommitted"}),
        "committed",
        "What is read of transactions: only what they have committed, and nothing behind one that is still open; or "
        "everything, aborted messages too.",
        (Alias("isolation.level", "Kafka, librdkafka"),),
    ),
    Option(
        "verify_checksums",
        Scope.READER,
        Flag(),
        True,
        "Whether the checksum of every entry is verified. It costs a few microseconds for each.",
        (Alias("check.crcs", "Kafka, librdkafka"),),
    ),
    Option(
        "on_gap",
        Scope.READER,
        Choice(get_args(OnGap)),
        "stop",
        "What a reader does when messages that it should read next are gone, because the log was cut or the topic made "
        "anew. stop: end with an error that names the missing positions; skip: count them and go on behind them.",
    ),
    Option(
        "trouble_ms_max",
        Scope.READER,
        millis(1, INT32_MAX),
        None,
        "How long a reader goes on trying while something is in its way, such as brokers that cannot be reached or a "
        "partition without a leader. After it reading ends with an error; without it, it is tried for ever.",
    ),
)

_REPLICATOR: Final = (
    Option(
        "delivery",
        Scope.REPLICATOR,
        Choice(get_args(Delivery)),
        "exactly-once",
        "What is promised. exactly-once: messages and the source's position are stored in one transaction, so that "
        "readers of what is committed see each message once, whatever happens. at-least-once: without transactions, "
        "which is faster; after a failure some messages are there twice.",
        (Alias("exactly.once.source.support", "Kafka", _exactly_once, "enabled or disabled"),),
    ),
    Option(
        "commit_interval_ms",
        Scope.REPLICATOR,
        millis(1, INT32_MAX),
        500,
        "How often positions are committed. With exactly-once, messages can be read in the target only then.",
        (Alias("offset.flush.interval.ms", "Kafka"),),
    ),
    Option(
        "transaction_bytes_max",
        Scope.REPLICATOR,
        size(1, TIB),
        64 * MIB,
        "A partition that has copied so much since the last commit commits at once.",
    ),
    Option(
        "repack",
        Scope.REPLICATOR,
        Choice(get_args(Repack)),
        "auto",
        "Whether batches are opened and put together anew. auto: runs of tiny ones, which would cost the target a "
        "request each; never: no batch is opened for that; always: all are.",
    ),
    Option(
        "copy_bytes_max",
        Scope.REPLICATOR,
        size(1, TIB),
        64 * MIB,
        "Bytes that may be on their way to the target at once, over all partitions.",
    ),
    Option(
        "copy_entries_max",
        Scope.REPLICATOR,
        count(1, INT32_MAX),
        10_000,
        "Entries that may be on their way to the target at once, over all partitions.",
        (Alias("replicationProducerQueueSize", "Pulsar"),),
    ),
    Option(
        "messages_per_second_max",
        Scope.REPLICATOR,
        count(1, INT32_MAX),
        None,
        "How many messages are copied in a second at the most, over all partitions.",
        (Alias("dispatchThrottlingRatePerReplicatorInMsg", "Pulsar"),),
    ),
    Option(
        "bytes_per_second_max",
        Scope.REPLICATOR,
        size(1, TIB),
        None,
        "How many bytes are copied in a second at the most, over all partitions.",
        (Alias("dispatchThrottlingRatePerReplicatorInByte", "Pulsar"),),
    ),
    Option(
        "renew_ms",
        Scope.REPLICATOR,
        millis(1, INT32_MAX),
        86_400_000,
        "After so long a position that has not moved is committed again, so that the target does not forget it.",
    ),
    Option(
        "discover_ms",
        Scope.REPLICATOR,
        millis(1, INT32_MAX),
        30_000,
        "How often new topics and partitions are looked for.",
        (Alias("refresh.topics.interval.seconds", "Kafka", _times(1000), "in seconds"),),
    ),
)

OPTIONS: Final[tuple[Option, ...]] = (*_CLIENT, *_PRODUCER, *_BATCH, *_GATE, *_READER, *_REPLICATOR)

# Names that users of the other systems will try and that have no row: what to do instead.
NOT_OPTIONS: Final[Mapping[str, str]] = {
    "bootstrap.servers": "name the brokers in the URL, kafka://host:port,host:port",
    "metadata.broker.list": "name the brokers in the URL, kafka://host:port,host:port",
    "retries": "a message is tried again until delivery_timeout_ms ends",
    "message.send.max.retries": "a message is tried again until delivery_timeout_ms ends",
    "retryTimesWhenSendFailed": "a message is tried again until delivery_timeout_ms ends",
    "batching_enabled": "batching is always on; batch_count_max=1 sends each message alone",
    "batchingEnabled": "batching is always on; batch_count_max=1 sends each message alone",
    "autoBatch": "batching is always on; batch_count_max=1 sends each message alone",
    "queue.buffering.max.messages": "memory is limited by bytes: total_bytes_max",
    "max_pending_messages": "memory is limited by bytes: total_bytes_max",
    "maxPendingMessages": "memory is limited by bytes: total_bytes_max",
    "group.id": "positions are kept by a cursor: client.cursor(topic, name)",
    "auto.offset.reset": "where reading starts is said by start=..., what becomes of a gap by on_gap",
    "enable.auto.commit": "positions are stored by cursor.commit(...), and not by themselves",
    "max.poll.records": "what is handed out is limited by bytes: partition_bytes_max",
    "lazy_start_partitioned_producers": "partitions are always opened when first used",
    "lazyStartPartitionedProducers": "partitions are always opened when first used",
}


def _spellings() -> dict[str, tuple[Option, Alias | None]]:
    """Every name a user may write; dotted ones also with underscores, as Python's Kafka clients have them."""
    found: dict[str, tuple[Option, Alias | None]] = {option.name: (option, None) for option in OPTIONS}
    for option in OPTIONS:
        for alias in option.aliases:
            found.setdefault(alias.name, (option, alias))
            found.setdefault(alias.name.replace(".", "_"), (option, alias))
    return found


SPELLINGS: Final[Mapping[str, tuple[Option, Alias | None]]] = _spellings()
