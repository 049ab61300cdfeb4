"""What the broker says no with, in Kafka's numbers: the one table from refusals and errors to codes."""

from __future__ import annotations

from typing import Final

from penstock.broker.refusals import Refusal, refusal_of
from penstock.errors import PenstockError
from penstock.wire.kafka.codes import TABLE

NUMBERS: Final = {row.name: row.number for row in TABLE}
"""Kafka's codes by their names."""

NONE: Final = 0
UNKNOWN_SERVER_ERROR: Final = NUMBERS["UNKNOWN_SERVER_ERROR"]

CODES: Final[dict[Refusal, int]] = {
    refusal: NUMBERS[name]
    for refusal, name in {
        Refusal.UNKNOWN_TOPIC: "UNKNOWN_TOPIC_OR_PARTITION",
        Refusal.UNKNOWN_PARTITION: "UNKNOWN_TOPIC_OR_PARTITION",
        Refusal.TOPIC_EXISTS: "TOPIC_ALREADY_EXISTS",
        Refusal.BAD_TOPIC_NAME: "INVALID_TOPIC_EXCEPTION",
        Refusal.BAD_PARTITION_COUNT: "INVALID_PARTITIONS",
        Refusal.BAD_SETTING: "INVALID_CONFIG",
        Refusal.CORRUPT_ENTRY: "CORRUPT_MESSAGE",
        Refusal.BAD_ENTRY: "INVALID_RECORD",
        Refusal.ENTRY_TOO_LARGE: "MESSAGE_TOO_LARGE",
        Refusal.BAD_TIME: "INVALID_TIMESTAMP",
        Refusal.TOO_MANY_PRODUCERS: "POLICY_VIOLATION",
        Refusal.OUT_OF_ORDER: "OUT_OF_ORDER_SEQUENCE_NUMBER",
        Refusal.DUPLICATE: "DUPLICATE_SEQUENCE_NUMBER",
        Refusal.STALE_EPOCH: "INVALID_PRODUCER_EPOCH",
        Refusal.FENCED: "PRODUCER_FENCED",
        Refusal.UNKNOWN_PRODUCER: "UNKNOWN_PRODUCER_ID",
        Refusal.BAD_TRANSACTION_STATE: "INVALID_TXN_STATE",
        Refusal.NOT_ENLISTED: "INVALID_TXN_STATE",
        Refusal.BAD_TRANSACTION_TIMEOUT: "INVALID_TRANSACTION_TIMEOUT",
        Refusal.CONCURRENT_TRANSACTION: "CONCURRENT_TRANSACTIONS",
        Refusal.WRONG_PRODUCER_ID: "INVALID_PRODUCER_ID_MAPPING",
        Refusal.UNKNOWN_TRANSACTION: "TRANSACTIONAL_ID_NOT_FOUND",
        Refusal.TRANSACTIONAL_ID_NEEDED: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        Refusal.POSITION_OUT_OF_RANGE: "OFFSET_OUT_OF_RANGE",
        Refusal.UNKNOWN_CURSOR: "RESOURCE_NOT_FOUND",
        Refusal.CURSOR_EXISTS: "DUPLICATE_RESOURCE",
        Refusal.BAD_CURSOR_NAME: "INVALID_REQUEST",
        Refusal.TOO_MANY_RANGES: "POLICY_VIOLATION",
        Refusal.UNKNOWN_MEMBER: "UNKNOWN_MEMBER_ID",
        Refusal.MEMBER_ID_NEEDED: "MEMBER_ID_REQUIRED",
        Refusal.ILLEGAL_GENERATION: "ILLEGAL_GENERATION",
        Refusal.REBALANCING: "REBALANCE_IN_PROGRESS",
        Refusal.INCONSISTENT_PROTOCOL: "INCONSISTENT_GROUP_PROTOCOL",
        Refusal.BAD_SESSION_TIMEOUT: "INVALID_SESSION_TIMEOUT",
        Refusal.FENCED_INSTANCE: "FENCED_INSTANCE_ID",
        Refusal.FENCED_MEMBER_EPOCH: "FENCED_MEMBER_EPOCH",
        Refusal.STALE_MEMBER_EPOCH: "STALE_MEMBER_EPOCH",
        Refusal.UNRELEASED_INSTANCE: "UNRELEASED_INSTANCE_ID",
        Refusal.UNSUPPORTED_ASSIGNOR: "UNSUPPORTED_ASSIGNOR",
        Refusal.GROUP_FULL: "GROUP_MAX_SIZE_REACHED",
        Refusal.TOO_MANY_GROUPS: "POLICY_VIOLATION",
        Refusal.BAD_PATTERN: "INVALID_REGULAR_EXPRESSION",
        Refusal.GROUP_NOT_EMPTY: "NON_EMPTY_GROUP",
        Refusal.UNKNOWN_GROUP: "GROUP_ID_NOT_FOUND",
        Refusal.BAD_GROUP_NAME: "INVALID_GROUP_ID",
        Refusal.GROUP_SUBSCRIBED: "GROUP_SUBSCRIBED_TO_TOPIC",
        Refusal.UNSTABLE_OFFSET: "UNSTABLE_OFFSET_COMMIT",
        Refusal.OFFSET_METADATA_TOO_LARGE: "OFFSET_METADATA_TOO_LARGE",
        Refusal.BAD_REQUEST: "INVALID_REQUEST",
        Refusal.NOT_ALLOWED: "POLICY_VIOLATION",
        Refusal.STORAGE_FULL: "KAFKA_STORAGE_ERROR",
        Refusal.STORAGE_FAILED: "KAFKA_STORAGE_ERROR",
    }.items()
}


def code_of(error: BaseException) -> int:
    """The code that an error is answered with; UNKNOWN_SERVER_ERROR for one that nobody foresaw."""
    if not isinstance(error, PenstockError):
        return UNKNOWN_SERVER_ERROR
    return CODES.get(refusal_of(error).reason, UNKNOWN_SERVER_ERROR)
