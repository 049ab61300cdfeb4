"""Kafka's error codes: all are there, and each says what it means."""

from __future__ import annotations

import pickle

import pytest
from kio.schema.errors import ErrorCode

from penstock.errors import (
    BatchTooLargeError,
    BrokerError,
    BusyError,
    ConnectionLostError,
    DeniedError,
    DuplicateError,
    FencedError,
    NotLeaderError,
    Persisted,
    RefusedError,
    SequenceError,
    TimedOutError,
    TransactionError,
    UnforeseenError,
    UnknownTopicError,
    UnsureError,
)
from penstock.wire.kafka.codes import ROWS, TABLE, error_of

# What Kafka's own clients do not call retriable, but which is tried again here: the module says why.
TRIED_AGAIN = {8, 55, 60, 129}


def test_all_codes_of_kafka_are_rows() -> None:
    known = {int(code): code.name.upper() for code in ErrorCode if code is not ErrorCode.none}
    assert {row.number: row.name for row in TABLE} == known
    assert len(ROWS) == len(TABLE)


def test_codes_are_retriable_where_kafkas_own_clients_say_so() -> None:
    assert {row.number for row in TABLE if row.error.retriable} == {
        int(code) for code in ErrorCode if code.retriable
    } | TRIED_AGAIN


def test_metadata_is_refreshed_for_whatever_has_moved() -> None:
    moved = {3, 5, 6, 7, 8, 9, 13, 15, 16, 41, 56, 72, 74, 75, 80, 83, 84, 100, 103, 129}
    assert {row.number for row in TABLE if row.error.refresh_metadata} == moved


def test_only_a_few_codes_leave_open_whether_it_was_stored() -> None:
    told = {persisted: {row.number for row in TABLE if row.error.persisted is persisted} for persisted in Persisted}
    assert told[Persisted.MAYBE] == {-1, 7, 13, 20}
    assert told[Persisted.YES] == {46}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (2, BusyError),
        (3, UnknownTopicError),
        (6, NotLeaderError),
        (7, TimedOutError),
        (10, BatchTooLargeError),
        (13, ConnectionLostError),
        (16, NotLeaderError),
        (18, BatchTooLargeError),
        (19, BusyError),
        (20, UnsureError),
        (29, DeniedError),
        (45, SequenceError),
        (46, DuplicateError),
        (47, FencedError),
        (48, TransactionError),
        (51, BusyError),
        (53, DeniedError),
        (59, SequenceError),
        (87, RefusedError),
        (90, FencedError),
        (120, TransactionError),
    ],
)
def test_a_code_becomes_the_error_of_its_meaning(code: int, error: type[BrokerError]) -> None:
    assert type(error_of(code, "orders-3")) is error


def test_an_error_says_code_subject_meaning_and_the_brokers_own_words() -> None:
    error = error_of(36, "topic orders", "Topic 'orders' already exists.")
    assert isinstance(error, RefusedError)
    assert error.code == "TOPIC_ALREADY_EXISTS"
    assert str(error) == (
        "TOPIC_ALREADY_EXISTS: topic orders: there is a topic of that name already; "
        "the broker said: Topic 'orders' already exists."
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_success_is_no_error() -> None:
    assert error_of(0, "orders-3") is None


@pytest.mark.parametrize("code", [9999, -2, 134])
def test_a_code_nobody_knows_is_not_tried_again_and_possibly_stored(code: int) -> None:
    error = error_of(code, "orders-3")
    assert isinstance(error, UnforeseenError)
    assert not error.retriable
    assert error.persisted is Persisted.MAYBE
    assert error.code == f"code {code}"
