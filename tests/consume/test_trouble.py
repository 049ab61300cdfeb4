"""Errors of every code, and seeded runs of readers on a cluster in trouble: what they hand out is what was stored."""

from __future__ import annotations

import pytest

from penstock.errors import PenstockError, RefusedError
from penstock.wire.kafka.codes import TABLE, Row
from penstock.wire.kafka.versions import FIND_COORDINATOR, LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH, Api
from tests.consume.chaos import Chaos
from tests.consume.harness import Harness
from tests.consume.model import ModelBroker

OUT_OF_RANGE, CORRUPT = 1, 2
PASSING = [row for row in TABLE if row.error.retriable and row.number != CORRUPT]
LASTING = [row for row in TABLE if not row.error.retriable and row.number != OUT_OF_RANGE]


def refused(harness: Harness, code: int, times: int) -> list[int]:
    """Fetches of partition 1 are refused so often; the list grows with each."""
    told: list[int] = []

    def refuse(broker: ModelBroker, topic: str, partition: int) -> int:
        if partition != 1 or len(told) >= times:
            return 0
        told.append(code)
        return code

    harness.model.refusal = refuse
    return told


@pytest.mark.parametrize("row", PASSING, ids=lambda row: row.name)
def test_what_passes_is_got_over_and_harms_no_other_partition(row: Row) -> None:
    harness = Harness(nodes=2)
    logs = harness.topic(partitions=3)
    for log in logs:
        log.write(5)
    told = refused(harness, row.number, 3)
    line = harness.reader(end="latest")
    line.read_to_end(seconds=60)
    assert len(told) == 3
    assert [line.positions(number) for number in range(3)] == [list(range(5))] * 3
    harness.check_idle()


@pytest.mark.parametrize("row", LASTING, ids=lambda row: row.name)
def test_what_does_not_pass_ends_it_with_that_error(row: Row) -> None:
    harness = Harness()
    harness.topic(partitions=2)[1].write(5)
    told = refused(harness, row.number, 3)
    error = harness.reader(end="latest").fail(seconds=60)
    assert type(error) is row.error
    assert row.name in str(error)
    assert len(told) == 1
    harness.check_idle()


def test_a_damaged_log_ends_it() -> None:
    harness = Harness()
    harness.topic(partitions=2)[1].write(5)
    refused(harness, CORRUPT, 3)
    error = harness.reader(end="latest").fail()
    assert type(error) is RefusedError
    assert "t-1: the broker's log is damaged there" in str(error)


@pytest.mark.parametrize("api", [LIST_OFFSETS, FIND_COORDINATOR, OFFSET_FETCH], ids=str)
@pytest.mark.parametrize("code", [5, 6, 7, 14, 15, 16, 72, 78])
def test_a_start_that_is_refused_for_a_while_is_asked_for_again(api: Api, code: int) -> None:
    harness = Harness(nodes=2)
    (log,) = harness.topic()
    log.write(5)
    times = [0]

    def refuse() -> int:
        times[0] += 1
        return code if times[0] <= 3 else 0

    harness.model.codes[api.key] = refuse
    line = harness.reader(start=harness.cursor().place, end="latest")
    line.read_to_end(seconds=60)
    assert times[0] > 3
    assert line.positions() == list(range(5))


@pytest.mark.parametrize("api", [LIST_OFFSETS, FIND_COORDINATOR, OFFSET_FETCH], ids=str)
def test_a_start_that_is_denied_ends_it(api: Api) -> None:
    harness = Harness()
    harness.topic()
    harness.model.codes[api.key] = lambda: 30
    error = harness.reader(start=harness.cursor().place, end="latest").fail(seconds=60)
    assert "GROUP_AUTHORIZATION_FAILED" in str(error)


def test_the_home_of_a_group_may_move() -> None:
    harness = Harness(nodes=3)
    (log,) = harness.topic()
    log.write(5)
    cursor = harness.cursor()
    for home in (1, 2, 3, 1):
        harness.model.home = home
        harness.result(cursor.commit({0: home}, 30))
        assert harness.result(cursor.marks(30))[0].position == home
    harness.model.codes[OFFSET_COMMIT.key] = lambda: 25
    with pytest.raises(PenstockError, match="UNKNOWN_MEMBER_ID"):
        harness.result(cursor.commit({0: 1}, 30))


@pytest.mark.parametrize("seed", range(60))
def test_readers_in_trouble_hand_out_what_was_stored(seed: int) -> None:
    Chaos(seed).run()


@pytest.mark.stress
@pytest.mark.parametrize("block", range(20))
def test_readers_in_trouble_hand_out_what_was_stored_in_many_runs(block: int) -> None:
    for seed in range(1000 + block * 100, 1000 + block * 100 + 100):
        Chaos(seed).run()
