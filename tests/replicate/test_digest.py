"""Digests, beside one that is made message by message from the table of strands."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from penstock.replicate.digest import Digest
from tests.replicate.verify_kit import Message, cut, numbered, rows

BYTES = st.none() | st.binary(max_size=5)
PAIRS = st.lists(st.tuples(st.text(max_size=3), BYTES), max_size=3).map(tuple)
PARTS = st.tuples(BYTES, BYTES, PAIRS, st.integers(-(1 << 62), 1 << 62))
MESSAGES = st.lists(PARTS.map(lambda parts: Message(*parts)), max_size=20)


def lengths(strings: Iterable[bytes | None]) -> bytes:
    return b"".join(struct.pack("<i", -1 if string is None else len(string)) for string in strings)


def joined(strings: Iterable[bytes | None]) -> bytes:
    return b"".join(string or b"" for string in strings)


def by_hand(messages: Sequence[Message]) -> str:
    keys, values = [message.key for message in messages], [message.value for message in messages]
    names = [name.encode() for message in messages for name, _ in message.properties]
    theirs = [value for message in messages for _, value in message.properties]
    strands = [
        b"".join(struct.pack("<q", message.time_ms) for message in messages),
        *(lengths(keys), joined(keys), lengths(values), joined(values)),
        b"".join(struct.pack("<i", len(message.properties)) for message in messages),
        *(lengths(names), joined(names), lengths(theirs), joined(theirs)),
    ]
    whole = struct.pack("<q", len(messages)) + b"".join(hashlib.sha256(strand).digest() for strand in strands)
    return hashlib.sha256(whole).hexdigest()[:32]


@given(messages=MESSAGES, sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_it_is_the_one_that_the_table_tells(messages: list[Message], sizes: list[int]) -> None:
    digest = Digest()
    for batch in cut(rows(messages), sizes):
        digest.add(batch)
    assert digest.count == len(messages)
    assert digest.hexdigest() == by_hand(messages)


def test_a_copy_goes_on_by_itself() -> None:
    messages = numbered(10)
    first = Digest()
    first.add(rows(messages[:4]))
    second = first.copy()
    second.add(rows(messages[4:]))
    assert first.hexdigest() == by_hand(messages[:4])
    assert second.hexdigest() == by_hand(messages)
