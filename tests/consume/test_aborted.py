"""Which entries belong to aborted transactions, compared with a model that knows how each transaction ended."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.consume.aborted import AbortedTransactions
from penstock.wire.entry import EntryFlag
from penstock.wire.kafka.header import peek
from penstock.wire.kafka.log_format import KafkaLogFormat
from penstock.wire.protocol import Aborted
from tests.consume.txn_log import TransactionLog

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "plain", "commit", "abort"]), st.integers(1, 3), st.integers(1, 3)
    ),
    max_size=40,
)


def kept(entries: list[bytes], listed: list[Aborted]) -> list[int]:
    """The first positions of entries that a reader of one answer hands out."""
    aborted, found = AbortedTransactions(listed), []
    for entry in entries:
        header = peek(entry)
        drops = aborted.drops(header)
        if EntryFlag.CONTROL in header.flags:
            if KafkaLogFormat().marker_of(entry) is False:
                aborted.aborts(header)
        elif not drops:
            assert isinstance(header.first, int)
            found.append(header.first)
    return found


@given(steps=STEPS, data=st.data())
def test_a_reader_gets_what_was_committed_wherever_answers_are_cut(steps: list[Any], data: st.DataObject) -> None:
    log = TransactionLog()
    for kind, producer, count in steps:
        log.step(kind, producer, count)
    log.finish()
    found: list[int] = []
    at = 0
    while at < len(log.entries):
        size = data.draw(st.integers(1, len(log.entries)))
        part = log.entries[at : at + size]
        found += kept(part, log.aborted_in(part))
        at += size
    assert found == log.committed


def test_a_producer_that_aborts_and_then_commits_is_told_apart() -> None:
    log = TransactionLog()
    for kind in ("write", "abort", "write", "commit", "write", "abort", "write", "commit"):
        log.step(kind, 1, 2)
    assert kept(log.entries, log.aborted_in(log.entries)) == log.committed == [3, 9]


def test_entries_outside_of_transactions_are_kept() -> None:
    log = TransactionLog()
    for kind in ("write", "plain", "write", "abort"):
        log.step(kind, 1, 1)
    assert kept(log.entries, log.aborted_in(log.entries)) == [1]
