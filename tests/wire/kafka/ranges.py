"""What brokers of several ages say they speak, of the requests that Penstock uses: oldest and newest version by key."""

from __future__ import annotations

from penstock.wire.kafka.versions import APIS, INCREMENTAL_ALTER_CONFIGS, Api

Ranges = dict[int, tuple[int, int]]

KEYS = (0, 1, 2, 3, 8, 9, 10, 16, 18, 19, 20, 22, 23, 24, 25, 26, 28, 32, 37)


def table(*rows: tuple[int, int]) -> Ranges:
    return dict(zip(KEYS, rows, strict=True))


# Produce, Fetch, ListOffsets, Metadata, OffsetCommit, OffsetFetch, FindCoordinator, ListGroups, ApiVersions,
# CreateTopics, DeleteTopics, InitProducerId, OffsetForLeaderEpoch, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn,
# TxnOffsetCommit, DescribeConfigs, CreatePartitions
KAFKA_2_1 = table(
    *((0, 7), (0, 10), (0, 4), (0, 7), (0, 6), (0, 5), (0, 2), (0, 2), (0, 2), (0, 3)),
    *((0, 3), (0, 1), (0, 2), (0, 1), (0, 1), (0, 1), (0, 2), (0, 2), (0, 1)),
)
KAFKA_2_8 = table(
    *((0, 9), (0, 12), (0, 6), (0, 11), (0, 8), (0, 7), (0, 3), (0, 4), (0, 3), (0, 7)),
    *((0, 6), (0, 4), (0, 4), (0, 3), (0, 3), (0, 3), (0, 3), (0, 4), (0, 3)),
)
KAFKA_3_9 = table(
    *((0, 11), (0, 17), (0, 9), (0, 12), (0, 9), (0, 9), (0, 6), (0, 5), (0, 4), (0, 7)),
    *((0, 6), (0, 5), (0, 4), (0, 5), (0, 4), (0, 4), (0, 4), (0, 4), (0, 3)),
)
KAFKA_4_3 = table(
    *((0, 13), (4, 18), (1, 11), (0, 13), (2, 10), (1, 10), (0, 6), (0, 5), (0, 4), (2, 7)),
    *((1, 6), (0, 5), (2, 4), (0, 5), (0, 4), (0, 5), (0, 5), (1, 4), (0, 3)),
)

for _later in (KAFKA_2_8, KAFKA_3_9, KAFKA_4_3):  # since Kafka 2.3
    _later[INCREMENTAL_ALTER_CONFIGS.key] = (0, 1)


def pinned(api: Api, version: int) -> Ranges:
    """A new broker that speaks only one version of one request."""
    return KAFKA_4_3 | {api.key: (version, version)}


def every_version() -> list[tuple[Api, int]]:
    """All versions of all requests that are spoken."""
    return [(api, version) for api in APIS for version in range(api.oldest, api.newest + 1)]
