"""The requests that are served, in which versions, and by whom.

A handler is a function `handler(request, context)` that is named here and imported when first asked for, so that a
broker starts fast. `request` has the fields of kio's request class of that version, as a named tuple; durations are
whole milliseconds. Handlers marked `RAW` read the body themselves: `handler(body, at, context)`.

The oldest versions matter as much as the newest: clients of librdkafka before 2.1 conclude from Produce above 3 or
Fetch above 4 that the broker has no record batches, and from FindCoordinator or JoinGroup or Heartbeat above 0 that it
cannot read lz4, which they then silently do not use. Those before 2.8 silently compress nothing but with zstd unless
Produce is told to begin with version 0; so that is told, as Kafka's own brokers do, although 0 to 2 are not served.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A kind of request: its versions, the first one that has compact fields and tags, and its handler."""

    name: str
    key: int
    oldest: int
    newest: int
    flexible_from: int
    handler: str
    """The module beside this one, and the function in it."""
    raw: bool = False
    """Whether the handler reads the body itself."""
    told_oldest: int | None = None
    """The oldest version that clients are told, where that is another."""

    def __str__(self) -> str:
        return self.name

    @property
    def told(self) -> tuple[int, int, int]:
        """What clients are told: key, oldest and newest version."""
        return self.key, self.oldest if self.told_oldest is None else self.told_oldest, self.newest

    def is_flexible(self, version: int) -> bool:
        """Whether this version has compact fields and tags."""
        return version >= self.flexible_from


RAW = True
NEVER = 1 << 15  # not flexible in any version

TABLE = (
    Served("Produce", 0, 3, 13, 9, "produce.produce", RAW, told_oldest=0),
    Served("Fetch", 1, 4, 18, 12, "fetch.fetch", RAW),
    Served("ListOffsets", 2, 1, 11, 6, "offsets.list_offsets"),
    Served("Metadata", 3, 0, 13, 9, "metadata.metadata"),
    Served("OffsetCommit", 8, 2, 10, 8, "groups.offset_commit"),
    Served("OffsetFetch", 9, 1, 10, 6, "groups.offset_fetch"),
    Served("FindCoordinator", 10, 0, 6, 3, "groups.find_coordinator"),
    Served("JoinGroup", 11, 0, 9, 6, "groups.join_group"),
    Served("Heartbeat", 12, 0, 4, 4, "groups.heartbeat"),
    Served("LeaveGroup", 13, 0, 5, 4, "groups.leave_group"),
    Served("SyncGroup", 14, 0, 5, 4, "groups.sync_group"),
    Served("DescribeGroups", 15, 0, 6, 5, "groups.describe_groups"),
    Served("ListGroups", 16, 0, 5, 3, "groups.list_groups"),
    Served("ApiVersions", 18, 0, 4, 3, "greeting.api_versions", RAW),
    Served("CreateTopics", 19, 2, 7, 5, "admin.create_topics"),
    Served("DeleteTopics", 20, 1, 6, 4, "admin.delete_topics"),
    Served("DeleteRecords", 21, 0, 2, 2, "admin.delete_records"),
    Served("InitProducerId", 22, 0, 5, 2, "transactions.init_producer_id"),
    Served("OffsetForLeaderEpoch", 23, 2, 4, 4, "offsets.offset_for_leader_epoch"),
    Served("AddPartitionsToTxn", 24, 0, 5, 3, "transactions.add_partitions_to_txn"),
    Served("AddOffsetsToTxn", 25, 0, 4, 3, "transactions.add_offsets_to_txn"),
    Served("EndTxn", 26, 0, 5, 3, "transactions.end_txn"),
    Served("TxnOffsetCommit", 28, 0, 5, 3, "transactions.txn_offset_commit"),
    Served("DescribeConfigs", 32, 1, 4, 4, "configs.describe_configs"),
    Served("AlterConfigs", 33, 0, 2, 2, "configs.alter_configs"),
    Served("DescribeLogDirs", 35, 1, 5, 2, "admin.describe_log_dirs"),
    Served("CreatePartitions", 37, 0, 3, 2, "admin.create_partitions"),
    Served("DeleteGroups", 42, 0, 2, 2, "groups.delete_groups"),
    Served("ElectLeaders", 43, 0, 2, 2, "admin.elect_leaders"),
    Served("IncrementalAlterConfigs", 44, 0, 1, 1, "configs.incremental_alter_configs"),
    Served("ListPartitionReassignments", 46, 0, 0, 0, "admin.list_partition_reassignments"),
    Served("OffsetDelete", 47, 0, 0, NEVER, "groups.offset_delete"),
    Served("DescribeCluster", 60, 0, 2, 0, "metadata.describe_cluster"),
    Served("DescribeProducers", 61, 0, 0, 0, "transaction_lists.describe_producers"),
    Served("DescribeTransactions", 65, 0, 0, 0, "transaction_lists.describe_transactions"),
    Served("ListTransactions", 66, 0, 2, 0, "transaction_lists.list_transactions"),
    Served("ConsumerGroupHeartbeat", 68, 0, 1, 0, "groups.consumer_group_heartbeat"),
    Served("ConsumerGroupDescribe", 69, 0, 1, 0, "groups.consumer_group_describe"),
    Served("DescribeTopicPartitions", 75, 0, 0, 0, "metadata.describe_topic_partitions"),
)

BY_KEY = {served.key: served for served in TABLE}
