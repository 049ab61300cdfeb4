"""MirrorMaker's records: round trips, damage, and against MirrorMaker itself."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, DecodeError, UnsupportedError
from penstock.replicate.mirror_formats import Checkpoint, OffsetSync, checkpoints_topic, syncs_topic
from tests.replicate.mirror import ask, in_hex

NAMES = st.text(st.characters(codec="utf-8"), max_size=40)
NUMBERS = st.integers(-(1 << 31), (1 << 31) - 1)
POSITIONS = st.integers(-(1 << 63), (1 << 63) - 1)
SYNCS = st.builds(OffsetSync, NAMES, NUMBERS, POSITIONS, POSITIONS)
CHECKPOINTS = st.builds(Checkpoint, NAMES, NAMES, NUMBERS, POSITIONS, POSITIONS, NAMES)

SYNC = OffsetSync("orders", 7, 1000, 900)
CHECKPOINT = Checkpoint("billing", "west.orders", 7, 1000, 900, "a note")


def test_offset_syncs_are_as_the_table_says() -> None:
    key, value = SYNC.encode()
    assert key == b"\x00\x06orders" + struct.pack(">i", 7)
    assert value == struct.pack(">qq", 1000, 900)


def test_checkpoints_are_as_the_table_says() -> None:
    key, value = CHECKPOINT.encode()
    assert key == b"\x00\x07billing\x00\x0bwest.orders" + struct.pack(">i", 7)
    assert value == struct.pack(">hqq", 0, 1000, 900) + b"\x00\x06a note"


@given(sync=SYNCS)
def test_offset_syncs_go_and_come(sync: OffsetSync) -> None:
    assert OffsetSync.decode(*sync.encode()) == sync


@given(checkpoint=CHECKPOINTS)
def test_checkpoints_go_and_come(checkpoint: Checkpoint) -> None:
    assert Checkpoint.decode(*checkpoint.encode()) == checkpoint


@pytest.mark.parametrize("record", [SYNC, CHECKPOINT], ids=["sync", "checkpoint"])
def test_what_is_cut_or_too_long_is_refused(record: Any) -> None:
    key, value = record.encode()
    for cut in range(len(key)):
        with pytest.raises(DecodeError):
            record.decode(key[:cut], value)
    for cut in range(len(value)):
        with pytest.raises(DecodeError):
            record.decode(key, value[:cut])
    with pytest.raises(DecodeError, match=r"end at byte \d+: expected no more bytes, found 1"):
        record.decode(key + b"\x00", value)
    with pytest.raises(DecodeError, match="end at byte"):
        record.decode(key, value + b"\x00")


def test_an_error_names_the_field() -> None:
    with pytest.raises(DecodeError, match="partition at byte 8: expected 4 bytes, found 2"):
        OffsetSync.decode(SYNC.encode()[0][:-2], b"")
    with pytest.raises(DecodeError, match="topic at byte 0: expected a length of 0 or more, found -1"):
        OffsetSync.decode(b"\xff\xff", b"")
    with pytest.raises(DecodeError, match="topic at byte 2: expected UTF-8"):
        OffsetSync.decode(b"\x00\x01\xff\x00\x00\x00\x00", b"")


def test_a_checkpoint_of_a_later_version_is_not_guessed_at() -> None:
    key, value = CHECKPOINT.encode()
    with pytest.raises(UnsupportedError, match="version at byte 0: expected 0, found 1"):
        Checkpoint.decode(key, b"\x00\x01" + value[2:])


@pytest.mark.parametrize("alias", ["", "a b", "ü", None, "a/b", "a\n"])
def test_an_alias_must_do_as_part_of_a_topics_name(alias: Any) -> None:
    for name in (syncs_topic, checkpoints_topic):
        with pytest.raises(ConfigError, match="alias: expected letters"):
            name(alias)
    assert syncs_topic("us-West_1.a") == "mm2-offset-syncs.us-West_1.a.internal"


def samples() -> tuple[list[OffsetSync], list[Checkpoint]]:
    chance = random.Random(7)
    names = ["orders", "", "a.b-c_d", "ünï 漢字 \U0001f600", "x" * 249]

    def position() -> int:
        return chance.choice([0, -1, 5, (1 << 63) - 1, -(1 << 63), chance.randrange(1 << 40)])

    def number() -> int:
        return chance.choice([0, 1, 70000, (1 << 31) - 1])

    syncs = [OffsetSync(chance.choice(names), number(), position(), position()) for _ in range(50)]
    checkpoints = [
        Checkpoint(chance.choice(names), chance.choice(names), number(), position(), position(), chance.choice(names))
        for _ in range(50)
    ]
    return syncs, checkpoints


def test_mirrormaker_reads_ours_and_writes_the_same(kafka_parts: None) -> None:
    syncs, checkpoints = samples()
    records = [one.encode() for one in syncs] + [one.encode() for one in checkpoints]
    words = ["read-sync"] * len(syncs) + ["read-checkpoint"] * len(checkpoints)
    reading = [(word, key.hex(), value.hex()) for word, (key, value) in zip(words, records, strict=True)]
    writing: list[tuple[str | int, ...]] = [("write-sync", in_hex(sync.topic), *sync[1:]) for sync in syncs]
    writing += [
        ("write-checkpoint", in_hex(one.group), in_hex(one.topic), *one[2:5], in_hex(one.metadata))
        for one in checkpoints
    ]
    topics, *answers = ask([("topics", "us-West_1.a"), *reading, *writing])
    assert topics == [syncs_topic("us-West_1.a"), checkpoints_topic("us-West_1.a")]
    assert answers[: len(records)] == [list(map(str, words[1:])) for words in writing]
    assert [tuple(map(bytes.fromhex, parts)) for parts in answers[len(records) :]] == records
