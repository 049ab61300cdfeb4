"""Slices know how many entries they hold, without anybody walking over them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.log.partition import PartitionLog
from tests.broker.log.kit import Kit, as_int, small


@pytest.fixture(autouse=True, scope="module")
def low_limits() -> None:
    """Many rows in each index."""
    with pytest.MonkeyPatch.context() as patch:
        small(patch)


def spans(log: PartitionLog) -> list[tuple[int, int]]:
    return [(as_int(each.header.first), as_int(each.header.last)) for each in log.entries(log.start)]


@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=60),
    bytes_max=st.integers(1, 3000),
    start=st.integers(0, 200),
    cut=st.integers(0, 40),
    restarts=st.booleans(),
)
def test_a_slice_holds_so_many_entries(counts: list[int], bytes_max: int, start: int, cut: int, restarts: bool) -> None:
    kit = Kit()
    log = kit.open()
    for number, count in enumerate(counts):
        kit.append(log, b"x" * (number % 50), count)
    kit.commit()
    if restarts:
        kit.restart()
        log = kit.open()
    entries = spans(log)
    position, limit = min(start, log.end), max(log.end - cut, 0)
    while (found := log.read(position, bytes_max, limit)) is not None:
        held = [span for span in entries if found.first <= span[0] and span[1] < found.next]
        assert found.entries == len(held) > 0
        position = found.next
        found.release()
    kit.close()


def test_whether_a_file_holds_claims_is_known_without_reading_it() -> None:
    kit = Kit()
    plain, claiming = kit.open(0), kit.open(1)
    for log in (plain, claiming):
        kit.append(log)
    kit.append(claiming, claim="eu")
    kit.commit()
    assert not plain.has_claims(0)
    assert claiming.has_claims(0)
    kit.restart()
    assert not kit.open(0).has_claims(0)
    assert kit.open(1).has_claims(1)
