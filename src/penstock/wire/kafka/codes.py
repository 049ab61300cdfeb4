"""Kafka's error codes: what each is called, which error it becomes, and what it means in words.

The class answers whether trying again is of use, whether leaders must be looked up anew and whether the message was
stored; who handles an error asks the class, never the number. A code that is not in the table, from a broker newer than
it, is taken for an `UnforeseenError`, as Kafka's own clients do: not tried again, since nothing is known of what it
asks for, and possibly stored.

Where the classes depart from what Kafka's own clients call retriable:

    BROKER_NOT_AVAILABLE, REBOOTSTRAP_REQUIRED    tried again, since looking up the cluster anew can help
    OPERATION_NOT_ATTEMPTED                       tried again, since nothing was wrong with it
    REASSIGNMENT_IN_PROGRESS                      tried again, since it ends
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import (
    BatchTooLargeError,
    BrokerError,
    BusyError,
    ConnectionLostError,
    DeniedError,
    DuplicateError,
    FencedError,
    NotLeaderError,
    RefusedError,
    SequenceError,
    TimedOutError,
    TransactionError,
    UnforeseenError,
    UnknownTopicError,
    UnsureError,
)

NONE = 0
UNSUPPORTED_VERSION = 35


class Row(NamedTuple):
    """One code."""

    number: int
    name: str
    error: type[BrokerError]
    text: str


TABLE = (
    Row(-1, "UNKNOWN_SERVER_ERROR", UnforeseenError, "an error that the broker did not expect; its log tells more"),
    Row(1, "OFFSET_OUT_OF_RANGE", RefusedError, "the position is outside of what the log still holds"),
    Row(2, "CORRUPT_MESSAGE", BusyError, "the batch arrived damaged, or has no key where a compacted topic wants one"),
    Row(3, "UNKNOWN_TOPIC_OR_PARTITION", UnknownTopicError, "there is no such topic or partition, or not yet"),
    Row(4, "INVALID_FETCH_SIZE", RefusedError, "the size asked for is wrong"),
    Row(5, "LEADER_NOT_AVAILABLE", NotLeaderError, "no leader is elected at the moment"),
    Row(6, "NOT_LEADER_OR_FOLLOWER", NotLeaderError, "the broker does not lead the partition (any more)"),
    Row(7, "REQUEST_TIMED_OUT", TimedOutError, "the broker gave up waiting, as for its replicas"),
    Row(8, "BROKER_NOT_AVAILABLE", NotLeaderError, "the broker is not available"),
    Row(9, "REPLICA_NOT_AVAILABLE", NotLeaderError, "the replica is not available"),
    Row(10, "MESSAGE_TOO_LARGE", BatchTooLargeError, "larger than the topic's max.message.bytes"),
    Row(11, "STALE_CONTROLLER_EPOCH", RefusedError, "the controller moved to another broker"),
    Row(12, "OFFSET_METADATA_TOO_LARGE", RefusedError, "the note is longer than offset.metadata.max.bytes"),
    Row(13, "NETWORK_EXCEPTION", ConnectionLostError, "the broker lost the connection to another one"),
    Row(14, "COORDINATOR_LOAD_IN_PROGRESS", BusyError, "the coordinator is still loading its state"),
    Row(15, "COORDINATOR_NOT_AVAILABLE", NotLeaderError, "no coordinator is available at the moment"),
    Row(16, "NOT_COORDINATOR", NotLeaderError, "the broker is not the coordinator (any more)"),
    Row(17, "INVALID_TOPIC_EXCEPTION", RefusedError, "not a topic's name, or one that clients may not write to"),
    Row(18, "RECORD_LIST_TOO_LARGE", BatchTooLargeError, "larger than a segment of the log"),
    Row(19, "NOT_ENOUGH_REPLICAS", BusyError, "fewer replicas are in step than min.insync.replicas demands"),
    Row(20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", UnsureError, "stored by fewer than min.insync.replicas"),
    Row(21, "INVALID_REQUIRED_ACKS", RefusedError, "acks must be all, leader or none"),
    Row(22, "ILLEGAL_GENERATION", RefusedError, "the group has gone on to another generation; join it again"),
    Row(23, "INCONSISTENT_GROUP_PROTOCOL", RefusedError, "the group's members speak another group protocol"),
    Row(24, "INVALID_GROUP_ID", RefusedError, "not a name that a group may have"),
    Row(25, "UNKNOWN_MEMBER_ID", RefusedError, "the group does not know this member; join it again"),
    Row(26, "INVALID_SESSION_TIMEOUT", RefusedError, "the session timeout is outside of what the broker allows"),
    Row(27, "REBALANCE_IN_PROGRESS", RefusedError, "the group is being rebalanced; join it again"),
    Row(28, "INVALID_COMMIT_OFFSET_SIZE", RefusedError, "the position is too large to be stored"),
    Row(29, "TOPIC_AUTHORIZATION_FAILED", DeniedError, "no permission for the topic"),
    Row(30, "GROUP_AUTHORIZATION_FAILED", DeniedError, "no permission for the group"),
    Row(31, "CLUSTER_AUTHORIZATION_FAILED", DeniedError, "no permission for the cluster"),
    Row(32, "INVALID_TIMESTAMP", RefusedError, "a time is further from the broker's than the topic allows"),
    Row(33, "UNSUPPORTED_SASL_MECHANISM", DeniedError, "the broker does not offer this way of authentication"),
    Row(34, "ILLEGAL_SASL_STATE", DeniedError, "authentication is not at this step"),
    Row(35, "UNSUPPORTED_VERSION", RefusedError, "the broker does not serve this version of the request"),
    Row(36, "TOPIC_ALREADY_EXISTS", RefusedError, "there is a topic of that name already"),
    Row(37, "INVALID_PARTITIONS", RefusedError, "the number of partitions is not allowed; it can only grow"),
    Row(38, "INVALID_REPLICATION_FACTOR", RefusedError, "replicas must be 1 or more, and no more than brokers"),
    Row(39, "INVALID_REPLICA_ASSIGNMENT", RefusedError, "the assignment of replicas is wrong"),
    Row(40, "INVALID_CONFIG", RefusedError, "a setting of the topic is wrong"),
    Row(41, "NOT_CONTROLLER", NotLeaderError, "the broker is not the controller (any more)"),
    Row(42, "INVALID_REQUEST", RefusedError, "the broker could not make sense of the request"),
    Row(43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", RefusedError, "the topic is stored in an old format that cannot do this"),
    Row(44, "POLICY_VIOLATION", RefusedError, "the broker's policy forbids it"),
    Row(45, "OUT_OF_ORDER_SEQUENCE_NUMBER", SequenceError, "a batch before this one is missing"),
    Row(46, "DUPLICATE_SEQUENCE_NUMBER", DuplicateError, "stored already, by an earlier try"),
    Row(47, "INVALID_PRODUCER_EPOCH", FencedError, "a newer instance has taken over, or the transaction timed out"),
    Row(48, "INVALID_TXN_STATE", TransactionError, "the transaction is not in a state that allows it"),
    Row(49, "INVALID_PRODUCER_ID_MAPPING", TransactionError, "the transactional id expired, or is another producer's"),
    Row(50, "INVALID_TRANSACTION_TIMEOUT", RefusedError, "the transaction timeout is above transaction.max.timeout.ms"),
    Row(51, "CONCURRENT_TRANSACTIONS", BusyError, "the transaction before is still being completed"),
    Row(52, "TRANSACTION_COORDINATOR_FENCED", RefusedError, "the coordinator was replaced by another"),
    Row(53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", DeniedError, "no permission for the transactional id"),
    Row(54, "SECURITY_DISABLED", RefusedError, "the cluster runs without security"),
    Row(55, "OPERATION_NOT_ATTEMPTED", BusyError, "not tried, because something else in the same request failed"),
    Row(56, "KAFKA_STORAGE_ERROR", NotLeaderError, "the broker's disk failed; another replica will lead"),
    Row(57, "LOG_DIR_NOT_FOUND", RefusedError, "the broker has no such log directory"),
    Row(58, "SASL_AUTHENTICATION_FAILED", DeniedError, "authentication failed"),
    Row(59, "UNKNOWN_PRODUCER_ID", SequenceError, "all that this producer had stored has expired"),
    Row(60, "REASSIGNMENT_IN_PROGRESS", BusyError, "the partitions are being moved to other brokers"),
    Row(61, "DELEGATION_TOKEN_AUTH_DISABLED", DeniedError, "delegation tokens are not enabled"),
    Row(62, "DELEGATION_TOKEN_NOT_FOUND", DeniedError, "no such delegation token"),
    Row(63, "DELEGATION_TOKEN_OWNER_MISMATCH", DeniedError, "the delegation token belongs to somebody else"),
    Row(64, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", DeniedError, "not on a connection of this kind"),
    Row(65, "DELEGATION_TOKEN_AUTHORIZATION_FAILED", DeniedError, "no permission for the delegation token"),
    Row(66, "DELEGATION_TOKEN_EXPIRED", DeniedError, "the delegation token has expired"),
    Row(67, "INVALID_PRINCIPAL_TYPE", RefusedError, "no such type of principal"),
    Row(68, "NON_EMPTY_GROUP", RefusedError, "the group still has members"),
    Row(69, "GROUP_ID_NOT_FOUND", RefusedError, "there is no such group"),
    Row(70, "FETCH_SESSION_ID_NOT_FOUND", BusyError, "the broker does not know this fetch session; start another"),
    Row(71, "INVALID_FETCH_SESSION_EPOCH", BusyError, "the fetch session is at another epoch; start another"),
    Row(72, "LISTENER_NOT_FOUND", NotLeaderError, "the leader has no listener that matches this one"),
    Row(73, "TOPIC_DELETION_DISABLED", RefusedError, "the cluster does not allow topics to be deleted"),
    Row(74, "FENCED_LEADER_EPOCH", NotLeaderError, "the leader epoch is older than the broker's"),
    Row(75, "UNKNOWN_LEADER_EPOCH", NotLeaderError, "the leader epoch is newer than the broker's"),
    Row(76, "UNSUPPORTED_COMPRESSION_TYPE", RefusedError, "this codec is not known to this version"),
    Row(77, "STALE_BROKER_EPOCH", RefusedError, "the broker's epoch has changed"),
    Row(78, "OFFSET_NOT_AVAILABLE", BusyError, "the new leader cannot tell the end of the log yet"),
    Row(79, "MEMBER_ID_REQUIRED", RefusedError, "a member id is needed first"),
    Row(80, "PREFERRED_LEADER_NOT_AVAILABLE", NotLeaderError, "the preferred leader is not available"),
    Row(81, "GROUP_MAX_SIZE_REACHED", RefusedError, "the group has as many members as it may have"),
    Row(82, "FENCED_INSTANCE_ID", RefusedError, "another consumer registered with the same instance id"),
    Row(83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", NotLeaderError, "no replica that may lead is available"),
    Row(84, "ELECTION_NOT_NEEDED", NotLeaderError, "the partition has the leader that it should have"),
    Row(85, "NO_REASSIGNMENT_IN_PROGRESS", RefusedError, "no partitions are being moved"),
    Row(86, "GROUP_SUBSCRIBED_TO_TOPIC", RefusedError, "the group is still subscribed to the topic"),
    Row(87, "INVALID_RECORD", RefusedError, "the broker found a message wrong and refused its batch"),
    Row(88, "UNSTABLE_OFFSET_COMMIT", BusyError, "a transaction that commits this position is still open"),
    Row(89, "THROTTLING_QUOTA_EXCEEDED", BusyError, "over the quota for changes of topics"),
    Row(90, "PRODUCER_FENCED", FencedError, "a newer instance uses the same transactional id"),
    Row(91, "RESOURCE_NOT_FOUND", RefusedError, "there is no such resource"),
    Row(92, "DUPLICATE_RESOURCE", RefusedError, "the same resource was named twice"),
    Row(93, "UNACCEPTABLE_CREDENTIAL", RefusedError, "the credential is not acceptable"),
    Row(94, "INCONSISTENT_VOTER_SET", RefusedError, "not one of the expected voters"),
    Row(95, "INVALID_UPDATE_VERSION", RefusedError, "the version of a feature is wrong"),
    Row(96, "FEATURE_UPDATE_FAILED", RefusedError, "the cluster could not change its features"),
    Row(97, "PRINCIPAL_DESERIALIZATION_FAILURE", DeniedError, "the brokers could not pass on who is asking"),
    Row(98, "SNAPSHOT_NOT_FOUND", RefusedError, "there is no such snapshot"),
    Row(99, "POSITION_OUT_OF_RANGE", RefusedError, "the position is outside of the snapshot"),
    Row(100, "UNKNOWN_TOPIC_ID", UnknownTopicError, "no topic has this id, not yet, or no longer"),
    Row(101, "DUPLICATE_BROKER_REGISTRATION", RefusedError, "the broker's number is taken"),
    Row(102, "BROKER_ID_NOT_REGISTERED", RefusedError, "the broker's number is not registered"),
    Row(103, "INCONSISTENT_TOPIC_ID", UnknownTopicError, "the topic has another id: it was created anew"),
    Row(104, "INCONSISTENT_CLUSTER_ID", RefusedError, "the broker belongs to another cluster"),
    Row(105, "TRANSACTIONAL_ID_NOT_FOUND", RefusedError, "there is no such transactional id"),
    Row(106, "FETCH_SESSION_TOPIC_ID_ERROR", BusyError, "the fetch session mixes topic ids and names; start another"),
    Row(107, "INELIGIBLE_REPLICA", RefusedError, "a replica may not be counted as being in step"),
    Row(108, "NEW_LEADER_ELECTED", RefusedError, "done, but another leader was elected meanwhile"),
    Row(109, "OFFSET_MOVED_TO_TIERED_STORAGE", RefusedError, "the position has moved to tiered storage"),
    Row(110, "FENCED_MEMBER_EPOCH", RefusedError, "the group has fenced this member; join it again"),
    Row(111, "UNRELEASED_INSTANCE_ID", RefusedError, "another member still uses the instance id"),
    Row(112, "UNSUPPORTED_ASSIGNOR", RefusedError, "the group does not know this assignor"),
    Row(113, "STALE_MEMBER_EPOCH", RefusedError, "the member's epoch is out of date"),
    Row(114, "MISMATCHED_ENDPOINT_TYPE", RefusedError, "meant for a broker, asked of a controller, or vice versa"),
    Row(115, "UNSUPPORTED_ENDPOINT_TYPE", RefusedError, "this kind of endpoint is not served yet"),
    Row(116, "UNKNOWN_CONTROLLER_ID", RefusedError, "there is no such controller"),
    Row(117, "UNKNOWN_SUBSCRIPTION_ID", RefusedError, "the telemetry subscription is out of date"),
    Row(118, "TELEMETRY_TOO_LARGE", RefusedError, "more telemetry than the broker takes"),
    Row(119, "INVALID_REGISTRATION", RefusedError, "the controller refused the broker's registration"),
    Row(120, "TRANSACTION_ABORTABLE", TransactionError, "the transaction failed; abort it and begin anew"),
    Row(121, "INVALID_RECORD_STATE", RefusedError, "the message is not in a state that allows this"),
    Row(122, "SHARE_SESSION_NOT_FOUND", BusyError, "the broker does not know this share session; start another"),
    Row(123, "INVALID_SHARE_SESSION_EPOCH", BusyError, "the share session is at another epoch; start another"),
    Row(124, "FENCED_STATE_EPOCH", RefusedError, "the share group's state is at another epoch"),
    Row(125, "INVALID_VOTER_KEY", RefusedError, "the voter's key does not match"),
    Row(126, "DUPLICATE_VOTER", RefusedError, "the voter is one already"),
    Row(127, "VOTER_NOT_FOUND", RefusedError, "there is no such voter"),
    Row(128, "INVALID_REGULAR_EXPRESSION", RefusedError, "the pattern is not a regular expression"),
    Row(129, "REBOOTSTRAP_REQUIRED", NotLeaderError, "what is known of the cluster is too old; look it up anew"),
    Row(130, "STREAMS_INVALID_TOPOLOGY", RefusedError, "the topology is wrong"),
    Row(131, "STREAMS_INVALID_TOPOLOGY_EPOCH", RefusedError, "the topology's epoch is wrong"),
    Row(132, "STREAMS_TOPOLOGY_FENCED", RefusedError, "the topology is out of date"),
    Row(133, "SHARE_SESSION_LIMIT_REACHED", BusyError, "the broker has as many share sessions as it may have"),
)

ROWS = {row.number: row for row in TABLE}


def error_of(code: int, about: str, said: str | None = None) -> BrokerError | None:
    """The error that a code stands for, None for success: what it is `about`, and what the broker `said` of it."""
    if code == NONE:
        return None
    row = ROWS.get(code) or Row(code, f"code {code}", UnforeseenError, "a code of Kafka's that is not known here")
    text = f"{about}: {row.text}"
    return row.error(f"{text}; the broker said: {said}" if said else text, row.name)
