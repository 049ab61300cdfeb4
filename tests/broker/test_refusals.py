"""What a broker says no with."""

from __future__ import annotations

import pickle

import pytest

from penstock.broker.refusals import Refusal, Refused, refusal_of
from penstock.errors import (
    ChecksumError,
    DecodeError,
    FolderFormatError,
    Persisted,
    PositionError,
    StorageDamagedError,
    StorageFailedError,
    StorageFullError,
    StorageReadOnlyError,
    UnsupportedError,
)


def test_every_reason_says_something_of_its_own() -> None:
    assert len({reason.value for reason in Refusal}) == len(Refusal)


def test_a_refusal_without_words_says_what_its_reason_says() -> None:
    assert str(Refused(Refusal.UNKNOWN_TOPIC)) == "there is no such topic"
    assert Refused(Refusal.UNKNOWN_TOPIC).text == "there is no such topic"
    assert str(Refused(Refusal.UNKNOWN_TOPIC, "no orders")) == "no orders"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StorageFullError("x"), Refusal.STORAGE_FULL),
        (StorageReadOnlyError("x"), Refusal.STORAGE_FAILED),
        (StorageFailedError("x"), Refusal.STORAGE_FAILED),
        (StorageDamagedError("x"), Refusal.STORAGE_FAILED),
        (FolderFormatError("x"), Refusal.STORAGE_FAILED),
        (PositionError(5, 0, 3), Refusal.POSITION_OUT_OF_RANGE),
        (ChecksumError(17, "crc", "a", "b"), Refusal.CORRUPT_ENTRY),
        (UnsupportedError(16, "magic", "2", 3), Refusal.BAD_ENTRY),
        (DecodeError(0, "length", "1", 2), Refusal.BAD_ENTRY),
        (Refused(Refusal.FENCED, "x"), Refusal.FENCED),
        (RuntimeError("x"), Refusal.STORAGE_FAILED),
    ],
)
def test_errors_below_amount_to_a_refusal(error: Exception, reason: Refusal) -> None:
    refused = refusal_of(error)
    assert refused.reason is reason
    assert str(error) in refused.text


def test_only_a_failed_disk_leaves_open_whether_it_was_done() -> None:
    assert Refused(Refusal.STORAGE_FAILED).stored is Persisted.MAYBE
    assert Refused(Refusal.STORAGE_FULL).stored is Persisted.NO


def test_a_refusal_can_be_sent_to_another_process() -> None:
    refused = Refused(Refusal.BAD_ENTRY, "two of them", {1: "no key"})
    again = pickle.loads(pickle.dumps(refused))
    assert (again.reason, again.text, again.records) == (refused.reason, refused.text, refused.records)
