"""The latest message of each key, beside a dictionary that knows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.replicate.latest import latest_positions, only_latest
from tests.replicate.verify_kit import Message, cut, rows

FIRST, STEP = 50, 3
PARTS = st.tuples(st.sampled_from([None, b"", b"a", b"b", b"c"]), st.sampled_from([None, b"", b"v"]))
MESSAGES = st.lists(PARTS.map(lambda parts: Message(*parts)), max_size=40)
SIZES = st.lists(st.integers(0, 7), min_size=1, max_size=5).filter(any)


def latest_of(messages: Sequence[Message]) -> dict[bytes, int]:
    """The positions of each key's latest message, of those that have a value."""
    found = {message.key: at for at, message in enumerate(messages) if message.key is not None}
    return {key: FIRST + STEP * at for key, at in found.items() if messages[at].value is not None}


@pytest.mark.parametrize("fresh_bytes_min", [1, 1 << 20], ids=["put together often", "put together once"])
@given(messages=MESSAGES, sizes=SIZES)
def test_only_the_latest_message_of_each_key_is_kept(
    fresh_bytes_min: int, messages: list[Message], sizes: list[int]
) -> None:
    batch = rows(messages, FIRST, STEP)
    positions = latest_positions(cut(batch, sizes), fresh_bytes_min)
    expected = sorted(latest_of(messages).values())
    assert positions.tolist() == expected
    kept = [at for piece in only_latest(cut(batch, sizes), positions) for at in piece.column("position").to_pylist()]
    keyless = [FIRST + STEP * at for at, message in enumerate(messages) if message.key is None]
    assert kept == sorted([*expected, *keyless])
