from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.filters import FilterContext, FilteredEntry, FilterLimits, Filters, Verdict
from penstock.broker.server.kafka.fetch_answer import SMALL_BYTES, skipping_batch
from penstock.broker.server.kafka.fetch_parts import EPOCH_MAX, Fetches, Part, SessionRoom
from penstock.broker.server.kafka.fetch_read import Reading
from penstock.broker.server.kafka.fetch_request import AskedPartition, FetchRequest
from penstock.wire.kafka.header import parse_header, split, verify
from penstock.wire.kafka.layout import BATCH_HEADER
from tests.broker.batches import FORMAT, batch
from tests.broker.server.kafka.desk import Client, Desk, FileLog

VERSIONS = range(4, 19)
BIG = 1 << 20


def want(desk: Desk, version: int, topic: str, *partitions: tuple[int, int], **more: Any) -> dict[str, Any]:
    """A topic with partitions and offsets, as a request names it."""
    name: dict[str, Any] = {"topic": topic}
    if version >= 13:
        found = desk.topics.find(topic)
        name = {"topic_id": found.id if found else more.pop("topic_id", None)}
    rows = [
        {"partition": number, "fetch_offset": offset, "partition_max_bytes": BIG} | more
        for number, offset in partitions
    ]
    return name | {"partitions": rows}


def terms(*topics: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"topics": list(topics), "max_wait": 500, "min_bytes": 1, "max_bytes": 50 * BIG, "session_epoch": -1} | more


def parts(answer: Any) -> list[Any]:
    return [part for topic in answer.responses for part in topic.partitions]


def offsets(part: Any) -> list[tuple[int, int]]:
    """First offset and count of each batch that was fetched."""
    rows = []
    for entry in split(part.records or b""):
        header = verify(entry)
        rows.append((header.base_offset, header.count))
    return rows


def fetch(client: Client, version: int, *partitions: tuple[int, int], topic: str = "orders", **more: Any) -> list[Any]:
    return parts(client.ask("Fetch", version, **terms(want(client.desk, version, topic, *partitions), **more)))


@pytest.mark.parametrize("version", VERSIONS)
def test_batches_are_fetched_in_every_version(desk: Desk, version: int) -> None:
    entries = [batch(3), batch(2, size=2 * SMALL_BYTES), batch(4)]
    for entry in entries:
        desk.put(entry)
    desk.put(batch(7), number=1)
    desk.partition("orders", 0).delete_before(2, lambda _: None)
    client = desk.client()
    first, second, third = fetch(client, version, (0, 3), (1, 0), (2, 0))
    assert (first.partition_index, first.error_code.value) == (0, 0)
    assert (first.high_watermark, first.last_stable_offset) == (9, 9)
    assert first.aborted_transactions is None
    assert offsets(first) == [(3, 2), (5, 4)]
    assert bytes(first.records)[16:61] == entries[1][16:61]
    assert offsets(second) == [(0, 7)]
    assert (third.partition_index, third.high_watermark, third.records) == (2, 0, b"")
    if version >= 5:
        assert first.log_start_offset == 2
    if version >= 11:
        assert first.preferred_read_replica == -1


def test_an_offset_within_a_batch_gets_all_of_that_batch(desk: Desk) -> None:
    desk.put(batch(5))
    (part,) = fetch(desk.client(), 12, (0, 3))
    assert offsets(part) == [(0, 5)]


@pytest.mark.parametrize(
    ("more", "number", "code"),
    [
        ({"fetch_offset": 9}, 0, 1),
        ({"fetch_offset": 0}, 0, 1),
        ({"current_leader_epoch": 0}, 0, 0),
        ({"current_leader_epoch": 3}, 0, 75),
        ({}, 8, 3),
    ],
)
def test_what_cannot_be_fetched_is_told_at_once(desk: Desk, more: dict[str, Any], number: int, code: int) -> None:
    desk.put(batch(5))
    desk.partition("orders", 0).delete_before(2, lambda _: None)
    client = desk.client()
    asked = want(desk, 12, "orders", (number, 3), **more)
    (part,) = parts(client.ask("Fetch", 12, **terms(asked, min_bytes=1000 if code else 1)))
    assert part.error_code.value == code


def test_topics_that_do_not_exist(desk: Desk) -> None:
    client = desk.client()
    (part,) = fetch(client, 12, (0, 0), topic="nowhere")
    assert part.error_code.value == 3
    (part,) = fetch(client, 13, (0, 0), topic="nowhere")
    assert part.error_code.value == 100


def test_limits_hold_but_for_the_first_batch(desk: Desk) -> None:
    for number in range(3):
        for _ in range(3):
            desk.put(batch(1, size=1000), number=number)
    client = desk.client()
    want_all = [(0, 0), (1, 0), (2, 0)]

    def fetched(**more: Any) -> list[int]:
        return [len(part.records) for part in fetch(client, 12, *want_all, **more)]

    assert fetched() == [3000, 3000, 3000]
    assert fetched(max_bytes=1) == [1000, 0, 0]
    assert fetched(max_bytes=3500) == [3000, 0, 0]
    assert fetched(max_bytes=4000) == [3000, 1000, 0]
    asked = want(desk, 12, "orders", *want_all, partition_max_bytes=1500)
    told = client.ask("Fetch", 12, **terms(asked))
    assert [len(part.records) for part in parts(told)] == [1000, 1000, 1000]


def test_a_fetch_waits_for_data_and_no_longer_than_it_may(desk: Desk) -> None:
    client = desk.client()
    client.send("Fetch", 12, **terms(want(desk, 12, "orders", (0, 0), (1, 0))))
    desk.pass_time(0.4)
    assert client.answers() == []
    desk.put(batch(2), number=1)
    (answer,) = client.answers()
    assert [offsets(part) for part in parts(answer)] == [[], [(0, 2)]]
    client.send("Fetch", 12, **terms(want(desk, 12, "orders", (0, 0))))
    desk.pass_time(0.49)
    assert client.answers() == []
    desk.pass_time(0.02)
    (answer,) = client.answers()
    assert [offsets(part) for part in parts(answer)] == [[]]
    assert len(desk.hub.timers) == 0
    assert not desk.partition("orders", 0).is_waited_for


def test_it_waits_for_as_many_bytes_as_are_asked_for(desk: Desk) -> None:
    client = desk.client()
    client.send("Fetch", 12, **terms(want(desk, 12, "orders", (0, 0), (1, 0)), min_bytes=2500))
    desk.put(batch(1, size=1000))
    desk.put(batch(1, size=1000), number=1)
    assert client.answers() == []
    desk.put(batch(1, size=1000))
    (answer,) = client.answers()
    assert [len(part.records) for part in parts(answer)] == [2000, 1000]
    flow = desk.partition("orders", 0).stats.delivered_flow
    assert flow is not None
    assert flow.bytes == 2000  # once, although it was looked at more often


@pytest.mark.parametrize("more", [{"max_wait": 0}, {"min_bytes": 0}])
def test_who_does_not_want_to_wait_does_not(desk: Desk, more: dict[str, Any]) -> None:
    (part,) = fetch(desk.client(), 12, (0, 0), **more)
    assert part.records == b""


def test_nothing_asked_for_is_answered_at_once(desk: Desk) -> None:
    assert desk.client().ask("Fetch", 12, **terms()).responses == ()


def test_only_what_is_durable_is_fetched(desk: Desk) -> None:
    desk.at_once = False
    desk.put(batch(2))
    client = desk.client()
    client.send("Fetch", 12, **terms(want(desk, 12, "orders", (0, 0))))
    assert client.answers() == []
    desk.round()
    (answer,) = client.answers()
    assert offsets(parts(answer)[0]) == [(0, 2)]
    desk.put(batch(2))
    (part,) = fetch(client, 12, (0, 3), max_wait=0)
    assert (part.error_code.value, part.records, part.high_watermark) == (0, b"", 2)


def test_a_topic_that_is_deleted_is_told_to_who_waits(desk: Desk) -> None:
    client = desk.client()
    client.send("Fetch", 12, **terms(want(desk, 12, "orders", (0, 0))))
    desk.topics.drop("orders")
    desk.turn()
    (answer,) = client.answers()
    assert parts(answer)[0].error_code.value == 3


def test_a_client_that_goes_while_it_waits_is_forgotten(desk: Desk) -> None:
    client = desk.client()
    client.send("Fetch", 12, **terms(want(desk, 12, "orders", (0, 0))))
    assert desk.partition("orders", 0).is_waited_for
    client.connection.close("gone")
    assert not desk.partition("orders", 0).is_waited_for
    assert len(desk.hub.timers) == 0
    desk.put(batch())


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("is_filtered", [False, True])
def test_what_cannot_be_read_is_an_error_of_its_partition_alone(desk: Desk, waits: bool, is_filtered: bool) -> None:
    if is_filtered:
        desk.filters = Filters(FilterLimits(), {"odd": Odd()})
        desk.topics.add("orders", 3, entry_filters="odd")
    client = desk.client()
    log = cast(FileLog, desk.partition("orders", 0).log)
    if not waits:
        log.is_unreadable = True
        desk.put(batch(2))
        desk.put(batch(1), number=1)
    client.send("Fetch", 12, **terms(want(desk, 12, "orders", (0, 0), (1, 0)), min_bytes=1))
    if waits:
        log.is_unreadable = True
        desk.put(batch(1), number=1)
        client.answers()
        client.send("Fetch", 12, **terms(want(desk, 12, "orders", (0, 0), (1, 1))))
        assert client.answers() == []
        desk.put(batch(2))
    (answer,) = client.answers()
    assert [part.error_code.name for part in parts(answer)] == ["kafka_storage_error", "none"]
    assert "orders-0 cannot be read" in desk.hub.told[-1]
    assert log.held == 0
    log.is_unreadable = False
    assert [offsets(part) for part in fetch(client, 12, (0, 0))] == [[(0, 2)]]


def test_a_fetch_that_fails_while_it_waits_ends_its_connection_alone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sick, well = desk.client(), desk.client()
    sick.send("Fetch", 12, **terms(want(desk, 12, "orders", (0, 0), (1, 0)), max_wait=5000))
    find = Reading._find

    def fails(self: Reading, part: Part) -> Any:
        if part.number == 1:
            raise RuntimeError("unforeseen")
        return find(self, part)

    with monkeypatch.context() as patched:
        patched.setattr(Reading, "_find", fails)
        desk.put(batch(1, size=2 * SMALL_BYTES))
    assert sick.connection.is_closed
    assert "unforeseen" in caplog.text
    assert cast(FileLog, desk.partition("orders", 0).log).held == 0
    assert [offsets(part) for part in fetch(well, 12, (0, 0))] == [[(0, 1)]]


def test_who_reads_only_what_is_committed_gets_no_more(desk: Desk) -> None:
    desk.put(batch(2))
    desk.put(batch(3, producer=9, epoch=0, sequence=0, transactional=True), transactional_id="mine")
    desk.put(batch(1))
    client = desk.client()
    (part,) = fetch(client, 12, (0, 0), isolation_level=1)
    assert (offsets(part), part.high_watermark, part.last_stable_offset) == ([(0, 2)], 6, 2)
    assert part.aborted_transactions == ()
    (part,) = fetch(client, 12, (0, 0))
    assert (offsets(part), part.last_stable_offset) == ([(0, 2), (2, 3), (5, 1)], 2)
    client.send("Fetch", 12, **terms(want(desk, 12, "orders", (0, 2)), isolation_level=1))
    assert client.answers() == []
    state = desk.partition("orders", 0)
    marker = FORMAT.marker(False, 9, 0, 0)
    place = state.log.append(FORMAT, marker, FORMAT.check(marker), 0)
    desk.round()
    state.producers.ended(FORMAT.check(marker), place, False, 0)
    state.producers.settle(state.log.visible)
    state.wake()
    desk.turn()
    (answer,) = client.answers()
    (part,) = parts(answer)
    assert offsets(part) == [(2, 3), (5, 1), (6, 1)]
    assert [(each.producer_id, each.first_offset) for each in part.aborted_transactions] == [(9, 2)]


def test_statistics_count_what_was_sent(desk: Desk) -> None:
    desk.put(batch(3, size=500))
    desk.put(batch(2, size=200))
    fetch(desk.client(), 12, (0, 1))
    flow = desk.partition("orders", 0).stats.delivered_flow
    assert flow is not None
    assert (flow.entries, flow.messages, flow.bytes) == (2, 4, 700)


# Sessions


def session(client: Client, *topics: dict[str, Any], version: int = 12, **more: Any) -> Any:
    return client.ask("Fetch", version, **terms(*topics, **{"session_epoch": 0, "max_wait": 0} | more))


def test_a_session_names_and_tells_only_what_is_new(desk: Desk) -> None:
    client = desk.client()
    told = session(client, want(desk, 12, "orders", (0, 0), (1, 0), (2, 0)))
    assert (told.error_code.value, len(parts(told))) == (0, 3)
    assert told.session_id > 0
    more = {"session_id": told.session_id}
    told = session(client, **more, session_epoch=1)
    assert (told.session_id, told.responses) == (more["session_id"], ())
    desk.put(batch(2), number=1)
    told = session(client, **more, session_epoch=2)
    assert [(part.partition_index, offsets(part)) for part in parts(told)] == [(1, [(0, 2)])]
    told = session(client, **more, session_epoch=3)  # not taken: told again
    assert [(part.partition_index, offsets(part)) for part in parts(told)] == [(1, [(0, 2)])]
    told = session(client, want(desk, 12, "orders", (1, 2)), **more, session_epoch=4)
    assert told.responses == ()
    forgotten = [{"topic": "orders", "partitions": (1,)}]
    told = session(client, **more, session_epoch=5, forgotten_topics_data=forgotten)
    desk.put(batch(2), number=1)
    desk.put(batch(1), number=2)
    told = session(client, **more, session_epoch=6)
    assert [part.partition_index for part in parts(told)] == [2]


def test_a_session_waits_for_any_of_its_partitions(desk: Desk) -> None:
    client = desk.client()
    told = session(client, want(desk, 12, "orders", (0, 0), (1, 0), (2, 0)))
    waits = {"session_id": told.session_id, "max_wait": 500}
    client.send("Fetch", 12, **terms(**waits, session_epoch=1))
    assert client.answers() == []
    desk.put(batch(2), number=2)
    (told,) = client.answers()
    assert [part.partition_index for part in parts(told)] == [2]
    client.send("Fetch", 12, **terms(want(desk, 12, "orders", (2, 2)), **waits, session_epoch=2))
    desk.pass_time(0.6)
    (told,) = client.answers()
    assert told.responses == ()


def test_a_first_request_that_waits_is_told_of_all_partitions(desk: Desk) -> None:
    client = desk.client()
    client.send("Fetch", 12, **terms(want(desk, 12, "orders", (0, 0), (1, 0), (2, 0)), session_epoch=0))
    desk.put(batch(2), number=2)
    (told,) = client.answers()
    assert [len(offsets(part)) for part in parts(told)] == [0, 0, 1]


def test_a_partition_that_had_no_room_in_one_answer_is_in_the_next(desk: Desk) -> None:
    client = desk.client()
    for number in range(3):
        desk.put(batch(1, size=1000), number=number)
    told = session(client, want(desk, 12, "orders", (0, 0), (1, 0), (2, 0)), max_bytes=1000)
    assert [len(part.records) for part in parts(told)] == [1000, 0, 0]
    more = {"session_id": told.session_id, "max_bytes": 1000}
    told = session(client, want(desk, 12, "orders", (0, 1)), **more, session_epoch=1)
    assert [len(part.records) for part in parts(told) if part.records] == [1000]
    seen = {part.partition_index for part in parts(told) if part.records}
    told = session(client, want(desk, 12, "orders", (seen.pop(), 1)), **more, session_epoch=2)
    assert [len(part.records) for part in parts(told) if part.records] == [1000]


def test_no_partition_of_a_session_is_starved_by_others(desk: Desk) -> None:
    client = desk.client()
    for number in range(3):
        desk.put(batch(1, size=1000), number=number)
    told = session(client, want(desk, 12, "orders", (0, 0), (1, 0), (2, 0)), max_bytes=1)
    served = set()
    for epoch in range(1, 8):
        told = session(client, session_id=told.session_id, session_epoch=epoch, max_bytes=1)
        served |= {part.partition_index for part in parts(told) if part.records}
    assert served == {0, 1, 2}


def test_errors_are_told_each_time(desk: Desk) -> None:
    client = desk.client()
    told = session(client, want(desk, 12, "orders", (0, 5)))
    for epoch in range(1, 4):
        told = session(client, session_id=told.session_id, session_epoch=epoch)
        assert [part.error_code.value for part in parts(told)] == [1]


def test_news_of_where_the_log_starts_are_told(desk: Desk) -> None:
    desk.put(batch(5))
    client = desk.client()
    told = session(client, want(desk, 12, "orders", (0, 5)))
    desk.partition("orders", 0).delete_before(3, lambda _: None)
    desk.partition("orders", 0).wake()
    told = session(client, session_id=told.session_id, session_epoch=1)
    assert [part.log_start_offset for part in parts(told)] == [3]


def test_sessions_that_do_not_exist_or_are_elsewhere(desk: Desk) -> None:
    client = desk.client()
    assert session(client, session_id=5, session_epoch=1).error_code.value == 70
    told = session(client, want(desk, 12, "orders", (0, 0)))
    assert session(client, session_id=told.session_id, session_epoch=9).error_code.value == 71
    assert session(client, session_id=told.session_id + 1, session_epoch=1).error_code.value == 70
    assert session(desk.client(), session_id=told.session_id, session_epoch=1).error_code.value == 70
    by_id = want(desk, 13, "orders", (1, 0))
    assert session(client, by_id, version=13, session_id=told.session_id, session_epoch=1).error_code.value == 106
    assert session(client, session_id=told.session_id, session_epoch=1).error_code.value == 0


def test_a_session_that_is_ended_or_begun_anew_is_forgotten(desk: Desk) -> None:
    client = desk.client()
    first = session(client, want(desk, 12, "orders", (0, 0)))
    assert desk.door.session_room.used == 1
    last = session(client, want(desk, 12, "orders", (0, 0)), session_id=first.session_id, session_epoch=-1)
    assert last.session_id == 0
    assert desk.door.session_room.used == 0
    assert not desk.partition("orders", 0).is_waited_for
    session(client, want(desk, 12, "orders", (0, 0), (1, 0)))
    client.connection.close("gone")
    assert desk.door.session_room.used == 0
    assert not desk.partition("orders", 0).is_waited_for


def test_when_sessions_hold_too_much_no_more_are_begun(desk: Desk) -> None:
    desk.door.session_room.parts_max = 3
    first, second = desk.client(), desk.client()
    assert session(first, want(desk, 12, "orders", (0, 0), (1, 0))).session_id > 0
    assert session(second, want(desk, 12, "orders", (0, 0), (1, 0))).session_id == 0
    assert session(second, want(desk, 12, "orders", (0, 0))).session_id > 0


def test_the_epoch_of_a_session_begins_again_after_the_largest() -> None:
    fetches = Fetches(SessionRoom())
    request = FetchRequest(0, 0, 0, False, 0, 0, [AskedPartition("t", 0, -1, 0, 1)], [])
    found = fetches.find(request)
    assert fetches.session is found
    assert fetches.session is not None
    fetches.session.epoch = EPOCH_MAX
    again = request._replace(session_id=fetches.session.id, session_epoch=EPOCH_MAX, partitions=[])
    assert fetches.find(again) is found
    assert fetches.session.epoch == 1


# Filters


class Odd:
    """Rejects entries at odd positions; puts off what it is told to."""

    def __init__(self) -> None:
        self.put_off: set[int] = set()
        self.seen: list[FilterContext] = []

    def filter_entry(self, entry: FilteredEntry, context: FilterContext) -> Verdict:
        self.seen.append(context)
        first = entry.header.first
        assert isinstance(first, int)
        if first in self.put_off:
            return Verdict.RESCHEDULE
        return Verdict.REJECT if first % 2 else Verdict.ACCEPT


def filtered(desk: Desk, count: int) -> Odd:
    odd = Odd()
    desk.filters = Filters(FilterLimits(reschedule_delay_s=0.2, reschedules_max=3), {"odd": odd})
    desk.topics.add("mixed", entry_filters="odd")
    for _ in range(count):
        desk.put(batch(1, size=SMALL_BYTES // 2), "mixed")
    return odd


def test_rejected_entries_are_left_out_and_passed_over(desk: Desk) -> None:
    filtered(desk, 6)
    (part,) = fetch(desk.client(), 12, (0, 0), topic="mixed")
    assert offsets(part) == [(0, 1), (2, 1), (4, 1), (5, 0)]
    last = parse_header(split(part.records)[-1])
    assert (last.base_offset, last.last_offset_delta) == (5, 0)


def test_a_reader_goes_on_although_all_is_rejected(desk: Desk) -> None:
    filtered(desk, 2)
    (part,) = fetch(desk.client(), 12, (0, 1), topic="mixed")
    assert offsets(part) == [(1, 0)]


def test_entries_that_are_put_off_end_what_is_fetched_until_they_are_due(desk: Desk) -> None:
    odd = filtered(desk, 6)
    odd.put_off = {2}
    client = desk.client()
    (part,) = fetch(client, 12, (0, 0), topic="mixed")
    assert offsets(part) == [(0, 1), (1, 0)]
    client.send("Fetch", 12, **terms(want(desk, 12, "mixed", (0, 2))))
    judged = len(odd.seen)
    desk.pass_time(0.1)
    assert len(odd.seen) == judged  # not before it is due
    assert client.answers() == []
    odd.put_off = set()
    desk.pass_time(0.2)
    (answer,) = client.answers()
    assert offsets(parts(answer)[0]) == [(2, 1), (4, 1), (5, 0)]


def test_entries_are_not_put_off_for_ever(desk: Desk) -> None:
    odd = filtered(desk, 3)
    odd.put_off = {0}
    client = desk.client()
    client.send("Fetch", 12, **terms(want(desk, 12, "mixed", (0, 0)), max_wait=60_000))
    for _ in range(10):
        desk.pass_time(0.3)
    (answer,) = client.answers()
    assert offsets(parts(answer)[0]) == [(0, 1), (2, 1)]


def test_a_groups_filters_hold_for_who_reads_for_it_alone(desk: Desk) -> None:
    odd = filtered(desk, 0)
    desk.filters.set_group("even", "odd")
    for _ in range(3):
        desk.put(batch(1), "orders")
    seen: list[tuple[Any, ...]] = []
    readers = {"orders": {"even"}}

    def groups_reading(*asked: Any) -> set[str]:
        seen.append(asked)
        return readers[asked[2]]

    desk.groups = SimpleNamespace(groups_reading=groups_reading)
    (part,) = fetch(desk.client(), 12, (0, 0))
    assert offsets(part) == [(0, 1), (2, 1)]
    assert seen == [("test", "127.0.0.1", "orders", 0)]
    assert odd.seen[0] == FilterContext("public/default/orders", 0, "even", "test", "127.0.0.1")
    readers["orders"] = {"even", "other"}
    (part,) = fetch(desk.client(), 12, (0, 0))
    assert offsets(part) == [(0, 1), (1, 1), (2, 1)]


def test_a_batch_to_pass_over_positions_is_what_readers_know() -> None:
    entry = skipping_batch(17, 30)
    header = verify(entry)
    assert (header.base_offset, header.last_offset_delta, header.count) == (17, 12, 0)
    assert len(entry) == BATCH_HEADER.size
    assert split(entry) == [memoryview(entry)]
