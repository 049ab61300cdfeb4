"""Batches made by hand: sent as they are, out of the user's hands, and held to what holds for all messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.config import BatchPolicy
from penstock.errors import BatchStateError, ClosedError, MessageError, MessageTooLargeError, NoRoomError
from tests.produce.harness import Harness, Line
from tests.produce.kits import Kit

HELD = BatchPolicy(delay_ms=60_000)


def ready(kit: Kit, policy: BatchPolicy = HELD, total: int = 1 << 20, **options: Any) -> tuple[Harness, Line]:
    """A producer whose topic is known."""
    harness = Harness(kit, total_bytes_max=total)
    harness.model.create("t", 2)
    line = harness.line("t", policy, **options)
    harness.run(lambda: line.outlet.readiness.verdict is not None)
    return harness, line


def made(line: Line, *values: bytes, **fields: Any) -> Any:
    batch = line.batch()
    assert batch.extend(values, **fields) == len(values)
    return batch


def stored(harness: Harness, partition: int = 0) -> list[list[bytes | None]]:
    """The values in a partition, batch by batch."""
    return [[row.value for row in entry.rows] for entry in harness.model.topics["t"][partition].entries]


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_batch_that_was_sent_cannot_be_changed_any_more(kit: Kit, compression: str) -> None:
    harness, line = ready(kit, compression=compression)
    batch = made(line, b"one", b"two")
    assert (batch.count, repr(batch)) == (2, f"<HandMadeBatch, 2 messages, {batch.size} bytes>")
    bulk = line.send_batch(batch, 0)
    uses: list[Callable[[], Any]] = [
        lambda: batch.append(b"three"),
        lambda: batch.extend([b"three"]),
        lambda: batch.count,
        lambda: batch.size,
        lambda: line.send_batch(batch, 0),
    ]
    for use in uses:
        with pytest.raises(BatchStateError, match="the batch was sent, which can be done once: make another with"):
            use()
    assert repr(batch) == "<HandMadeBatch, sent>"
    harness.results(list(bulk))
    assert stored(harness) == [[b"one", b"two"]]
    harness.check_idle()


def test_a_batch_goes_after_what_its_lane_has_open_and_before_what_comes_later(kit: Kit) -> None:
    harness, line = ready(kit)
    line.send(b"before", partition=0)
    line.send_batch(made(line, b"one", b"two"), 0)
    line.send(b"after", partition=0)
    line.flush()
    assert stored(harness) == [[b"before"], [b"one", b"two"], [b"after"]]
    assert line.reasons() == {"direct": 2, "flush": 1}


def test_a_batch_for_another_system_is_refused(kit: Kit) -> None:
    _, line = ready(kit)
    batch = made(line, b"one")
    batch.scheme = "pulsar"
    with pytest.raises(
        MessageError, match=r"batch: expected one made by `producer.batch\(\)`, found <HandMadeBatch, 1"
    ):
        line.send_batch(batch, 0)


# What it claims


RESTRICTED = BatchPolicy(delay_ms=60_000, same_properties={"kind": ["a"], "region": ["us", "eu"]})


def test_a_batch_claims_what_its_messages_share(kit: Kit) -> None:
    harness, line = ready(kit, RESTRICTED)
    batch = line.batch()
    batch.append(b"one", properties={"region": "eu", "kind": "not listed"})
    batch.append(b"two", properties={"region": b"eu"})
    harness.results([*line.send_batch(batch, 0), *line.send_batch(made(line, b"three"), 0)])
    claims = [dict(entry.claim.same) for entry in harness.model.topics["t"][0].entries]
    assert claims == [{"kind": None, "region": "eu"}, {"kind": None, "region": None}]


def test_a_batch_whose_messages_differ_in_a_restricted_property_is_refused_and_can_be_sent_elsewhere(kit: Kit) -> None:
    harness, line = ready(kit, RESTRICTED)
    batch = line.batch()
    batch.append(b"one", properties={"region": "eu"})
    batch.append(b"two", properties={"region": "us"})
    with pytest.raises(MessageError, match="its messages differ in the property 'region', which same_properties keeps"):
        line.send_batch(batch, 0)
    assert harness.accumulator.budget.used == 0
    other = harness.line("t", HELD)
    harness.run(lambda: other.outlet.readiness.verdict is not None)
    harness.results(list(other.send_batch(batch, 0)))
    assert stored(harness) == [[b"one", b"two"]]


def test_a_batch_lists_the_values_that_occur(kit: Kit) -> None:
    harness, line = ready(kit, BatchPolicy(delay_ms=60_000, listed_properties=("city",)))
    batch = line.batch()
    for number, city in enumerate(("oslo", "rome", "oslo")):
        batch.append(b"%d" % number, properties={"city": city})
    harness.results(list(line.send_batch(batch, 0)))
    (entry,) = harness.model.topics["t"][0].entries
    assert entry.claim.values("city") == frozenset({"oslo", "rome"})


# What it takes


def test_a_message_that_is_too_large_is_named(kit: Kit) -> None:
    harness, line = ready(kit, message_bytes_max=500)
    batch = made(line, b"x" * 300, b"x" * 600, b"x" * 300)
    with pytest.raises(MessageTooLargeError, match=r"message 1: it takes \d+ bytes .* message_bytes_max is 500"):
        line.send_batch(batch, 0)
    fine = made(line, b"x" * 300, b"x" * 300)
    harness.results(list(line.send_batch(fine, 0)))
    assert stored(harness) == [[b"x" * 300, b"x" * 300]]
    harness.check_idle()


def test_a_batch_that_no_memory_could_ever_hold_is_refused_at_once(kit: Kit) -> None:
    _, line = ready(kit, total=4000, message_bytes_max=4000)
    with pytest.raises(MessageTooLargeError, match=r"batch: it takes \d+ bytes, and total_bytes_max is 4000"):
        line.send_batch(made(line, *[b"x" * 1000] * 5), 0)


def test_without_room_a_batch_is_refused_where_that_is_asked_for_and_can_be_sent_later(kit: Kit) -> None:
    harness, line = ready(kit, total=4000, message_bytes_max=4000, when_full="fail")
    first = line.send_batch(made(line, b"x" * 3000), 0)
    batch = made(line, b"y" * 2000)
    with pytest.raises(NoRoomError, match="when_full=fail"):
        line.send_batch(batch, 0)
    harness.results(list(first))
    batch.append(b"z")
    harness.results(list(line.send_batch(batch, 0)))
    assert stored(harness) == [[b"x" * 3000], [b"y" * 2000, b"z"]]
    harness.check_idle()


def test_without_room_a_batch_waits_and_cannot_be_changed_meanwhile(kit: Kit) -> None:
    harness, line = ready(kit, total=4000, message_bytes_max=4000, when_full="wait", full_timeout_ms=0)
    line.send_batch(made(line, b"x" * 3000), 0)
    batch = made(line, b"y" * 2000)

    def meanwhile() -> None:
        with pytest.raises(BatchStateError):
            batch.append(b"too late")
        harness.advance(1.0)

    harness.home.meanwhile = meanwhile
    harness.results(list(line.send_batch(batch, 0)))
    assert stored(harness) == [[b"x" * 3000], [b"y" * 2000]]
    harness.check_idle()


def test_who_waits_for_room_in_vain_keeps_his_batch_and_no_memory(kit: Kit) -> None:
    harness, line = ready(kit, total=4000, message_bytes_max=4000, when_full="wait", full_timeout_ms=0)
    line.send_batch(made(line, b"x" * 3000), 0)
    used = harness.accumulator.budget.used
    batch = made(line, b"y" * 2000)
    harness.home.meanwhile = lambda: None
    with pytest.raises(NoRoomError):
        line.send_batch(batch, 0)
    assert (harness.accumulator.budget.used, batch.count) == (used, 1)


def test_a_producer_that_is_closed_while_a_batch_waits_for_room_gives_it_back(kit: Kit) -> None:
    harness, line = ready(kit, total=4000, message_bytes_max=4000, when_full="wait", full_timeout_ms=0)
    line.send_batch(made(line, b"x" * 3000), 0)
    batch = made(line, b"y" * 2000)

    def meanwhile() -> None:
        line.begin_close()
        harness.advance(1.0)

    harness.home.meanwhile = meanwhile
    with pytest.raises(ClosedError):
        line.send_batch(batch, 0)
    assert batch.count == 1
    harness.check_idle()


def test_directly_a_batch_may_exceed_the_memory_by_as_much_again(kit: Kit) -> None:
    harness, line = ready(kit, total=4000, message_bytes_max=4000, when_full="direct", full_timeout_ms=0)
    harness.model.brokers[1].tamper = lambda answer: []
    for value in (b"x", b"y"):
        line.send_batch(made(line, value * 3000), 0)
    harness.home.meanwhile = lambda: None
    with pytest.raises(NoRoomError, match=r"of twice 4000 bytes \(total_bytes_max\).*none became free within"):
        line.send_batch(made(line, b"z" * 3000), 0)
    assert harness.accumulator.budget.used <= 2 * 4000
