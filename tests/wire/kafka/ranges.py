"""What brokers of several ages say they speak, of the requests that Penstock uses: oldest and newest version by key."""

from __future__ import annotations

from penstock.wire.kafka.versions import APIS, Api

Ranges = dict[int, tuple[int, int]]

KEYS = (0, 3, 10, 18, 19, 20, 22, 24, 25, 26, 28, 37)


def table(*rows: tuple[int, int]) -> Ranges:
    return dict(zip(KEYS, rows, strict=True))


# Produce, Metadata, FindCoordinator, ApiVersions, CreateTopics, DeleteTopics,
# InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit, CreatePartitions
KAFKA_2_1 = table(
    *((0, 7), (0, 7), (0, 2), (0, 2), (0, 3), (0, 3)),
    *((0, 1), (0, 1), (0, 1), (0, 1), (0, 2), (0, 1)),
)
KAFKA_2_8 = table(
    *((0, 9), (0, 11), (0, 3), (0, 3), (0, 7), (0, 6)),
    *((0, 4), (0, 3), (0, 3), (0, 3), (0, 3), (0, 3)),
)
KAFKA_3_9 = table(
    *((0, 11), (0, 12), (0, 6), (0, 4), (0, 7), (0, 6)),
    *((0, 5), (0, 5), (0, 4), (0, 4), (0, 4), (0, 3)),
)
KAFKA_4_3 = table(
    *((0, 13), (0, 13), (0, 6), (0, 4), (2, 7), (1, 6)),
    *((0, 5), (0, 5), (0, 4), (0, 5), (0, 5), (0, 3)),
)


def pinned(api: Api, version: int) -> Ranges:
    """A new broker that speaks only one version of one request."""
    return KAFKA_4_3 | {api.key: (version, version)}


def every_version() -> list[tuple[Api, int]]:
    """All versions of all requests that are spoken."""
    return [(api, version) for api in APIS for version in range(api.oldest, api.newest + 1)]
