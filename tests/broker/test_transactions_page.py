"""What is written down of a transactional id: its states, who may do what, and the bytes."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.refusals import Refusal, Refused
from penstock.broker.transactions import page as page_module
from penstock.broker.transactions.page import EPOCH_MAX, TRANSITIONS, EndVerdict, Page, State, unpack
from penstock.errors import DecodeError
from penstock.wire.protocol import Identity, Partition

MINE, BEFORE, STRANGER = Identity(7, 3), Identity(7, 2), Identity(8, 3)
BEGIN, WAIT, TELL = EndVerdict.BEGIN, EndVerdict.WAIT, EndVerdict.TELL
FENCED, NO = Refusal.FENCED, Refusal.BAD_TRANSACTION_STATE
EM, ON = State.EMPTY, State.ONGOING
PC, PA, CC, CA = State.PREPARE_COMMIT, State.PREPARE_ABORT, State.COMPLETE_COMMIT, State.COMPLETE_ABORT


def page(state: State) -> Page:
    return Page("t", MINE.producer, MINE.epoch, BEFORE, timeout_ms=1000, state=state)


# Who asks; whether its identity changes with each end; what it wants; then what becomes of it in each state.
ENDS: list[tuple[Identity, bool, bool, Mapping[State, EndVerdict | Refusal]]] = [
    (MINE, True, True, {EM: NO, ON: BEGIN, PC: FENCED, PA: FENCED, CC: NO, CA: NO}),
    (MINE, True, False, {EM: BEGIN, ON: BEGIN, PC: FENCED, PA: FENCED, CC: BEGIN, CA: BEGIN}),
    (BEFORE, True, True, {EM: FENCED, ON: FENCED, PC: WAIT, PA: NO, CC: TELL, CA: NO}),
    (BEFORE, True, False, {EM: FENCED, ON: FENCED, PC: NO, PA: WAIT, CC: NO, CA: TELL}),
    (MINE, False, True, {EM: NO, ON: BEGIN, PC: WAIT, PA: NO, CC: TELL, CA: NO}),
    (MINE, False, False, {EM: NO, ON: BEGIN, PC: NO, PA: WAIT, CC: NO, CA: TELL}),
    (BEFORE, False, True, dict.fromkeys((EM, ON, PC, PA, CC, CA), FENCED)),
    (BEFORE, False, False, dict.fromkeys((EM, ON, PC, PA, CC, CA), FENCED)),
    *(
        (STRANGER, renews, commit, dict.fromkeys((EM, ON, PC, PA, CC, CA), Refusal.WRONG_PRODUCER_ID))
        for renews in (True, False)
        for commit in (True, False)
    ),
]


@pytest.mark.parametrize(
    ("identity", "renews", "commit", "state", "expected"),
    [(*row[:3], state, expected) for row in ENDS for state, expected in row[3].items()],
)
def test_who_may_end_what(
    identity: Identity, renews: bool, commit: bool, state: State, expected: EndVerdict | Refusal
) -> None:
    try:
        found: EndVerdict | Refusal = page(state).judge_end(identity, commit, renews)
    except Refused as refused:
        found = refused.reason
    assert found is expected


def test_states_follow_each_other_as_the_table_says() -> None:
    steps = {
        State.EMPTY: lambda it: it.identified(1, None, 9, 5),
        State.ONGOING: lambda it: it.enlisted([Partition("a", 0)], ["g"], 5),
        State.PREPARE_COMMIT: lambda it: it.prepared(True, True, 9, 5),
        State.PREPARE_ABORT: lambda it: it.prepared(False, True, 9, 5),
        State.DEAD: lambda it: it.dead(5),
    }
    for before, after in itertools.product(State, steps):
        if after in TRANSITIONS[before]:
            assert steps[after](page(before)).state is after
        else:
            with pytest.raises(AssertionError):
                steps[after](page(before))
    assert page(PC).completed(5).state is CC
    assert page(PA).completed(5).state is CA


def test_the_picture_names_every_state() -> None:
    assert page_module.__doc__ is not None
    for state in State:
        name = state.name
        assert name in page_module.__doc__ or name.split("_")[0] + "_*" in page_module.__doc__


@pytest.mark.parametrize("state", [EM, CC, CA])
def test_who_asks_for_the_id_gets_the_next_epoch(state: State) -> None:
    taken = page(state).identified(500, None, 99, 5)
    assert (taken.identity, taken.last, taken.timeout_ms) == (Identity(7, 4), None, 500)
    renewed = page(state).identified(500, MINE, 99, 5)
    assert (renewed.identity, renewed.last) == (Identity(7, 4), MINE)
    again = page(state).identified(500, BEFORE, 99, 5)
    assert (again.identity, again.last) == (MINE, BEFORE)


def test_the_largest_epoch_is_never_given() -> None:
    last_but_one = dataclasses.replace(page(EM), epoch=EPOCH_MAX - 2)
    assert last_but_one.identified(1, None, 99, 5).identity == Identity(7, EPOCH_MAX - 1)
    last = dataclasses.replace(page(EM), epoch=EPOCH_MAX - 1)
    assert last.identified(1, None, 99, 5).identity == Identity(99, 0)
    assert last.identified(1, last.identity, 99, 5).last == last.identity
    ended = dataclasses.replace(last, state=ON).prepared(True, True, 99, 5)
    assert ended.identity == Identity(7, EPOCH_MAX)
    assert ended.completed(5).identity == Identity(99, 0)
    assert ended.completed(5).last == last.identity
    kept = dataclasses.replace(last, state=ON).prepared(True, False, 99, 5).completed(5)
    assert kept.identity == last.identity


def test_who_may_ask_for_another_identity() -> None:
    for state, current, refused in (
        (EM, None, False),
        (EM, MINE, False),
        (EM, BEFORE, False),
        (EM, STRANGER, True),
        (EM, Identity(7, 1), True),
        (ON, MINE, False),
        (ON, BEFORE, True),
    ):
        if refused:
            with pytest.raises(Refused) as error:
                page(state).check_current(current)
            assert error.value.reason is FENCED
        else:
            page(state).check_current(current)
    Page("t", 7).check_current(STRANGER)


pages = st.builds(
    Page,
    transactional_id=st.just("t"),
    producer=st.integers(0, 1 << 62),
    epoch=st.integers(-1, EPOCH_MAX),
    last=st.none() | st.builds(Identity, st.integers(0, 1 << 62), st.integers(0, EPOCH_MAX)),
    next_producer=st.integers(-1, 1 << 62),
    timeout_ms=st.integers(1, 1 << 31),
    state=st.sampled_from(State),
    partitions=st.frozensets(st.builds(Partition, st.text(), st.integers(0, 1000))),
    groups=st.frozensets(st.text()),
    began_ms=st.integers(-1, 1 << 62),
    changed_ms=st.integers(-1, 1 << 62),
)


@given(pages)
def test_packing_keeps_everything(page: Page) -> None:
    assert unpack("t", page.pack()) == page


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"state": "Nowhere"}, {"unknown": 1}, {"last": 5}, {"topics": [1]}, {"groups": 5}],
)
def test_what_was_not_packed_is_refused(change: dict[str, object]) -> None:
    values = json.loads(page(ON).pack()) | change
    with pytest.raises(DecodeError):
        unpack("t", json.dumps(values).encode())
    for broken in (b"", b"[]", b"{}", b"\xff", page(ON).pack()[:-1]):
        with pytest.raises(DecodeError):
            unpack("t", broken)
