"""Control requests and their answers in every version, read and written by kio."""

from __future__ import annotations

import contextlib
import dataclasses
from datetime import timedelta
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader

from penstock.errors import BusyError, DecodeError, PenstockError, RefusedError, UnforeseenError, UnknownTopicError
from penstock.wire.kafka import schema
from penstock.wire.kafka.primitives import NO_TAGS
from penstock.wire.kafka.requests import EXCHANGES
from penstock.wire.kafka.requests.transactions import CURRENT_FROM
from penstock.wire.kafka.versions import (
    ADD_PARTITIONS_TO_TXN,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    Api,
)
from penstock.wire.kafka.wishes import FILTER_FEATURE
from penstock.wire.protocol import (
    Answered,
    ClusterView,
    CommitMarks,
    CreateTopic,
    DeleteTopic,
    Done,
    Endpoint,
    EndTransaction,
    Enlist,
    EnlistGroup,
    EpochEnd,
    FindEpochEnds,
    FindHome,
    FindPositions,
    Found,
    GroupFilter,
    GroupMember,
    GrowTopic,
    Identify,
    Identity,
    ListGroups,
    LookUp,
    Mark,
    Partition,
    PartitionView,
    ReadFilter,
    ReadMarks,
    ReadSettings,
    Request,
    SetFilter,
    Spot,
    StoreMarks,
    TopicSettings,
    TopicView,
)
from tests.wire.kafka.ranges import pinned
from tests.wire.kafka.talk import (
    NEWEST,
    answer,
    greeted,
    kio_bytes,
    receive,
    response,
    sample,
    schema_error,
    schema_time,
)

ME = Identity(7, 3)
T0 = Partition("t", 0)
SAMPLES: list[tuple[Request[Any], Any]] = [
    (LookUp(frozenset("t")), ClusterView("t", {0: Endpoint("t", 0)}, {"t": TopicView({0: PartitionView(0, 0)})}, 0)),
    (CreateTopic("t", 3, 1, {"retention.ms": "1"}), Done()),
    (DeleteTopic("t"), Done()),
    (GrowTopic("t", 5), Done()),
    (Identify("t", 1234, ME), Identity(0, 0)),
    (FindHome("t"), (0, Endpoint("t", 0))),
    (Enlist("t", ME, [T0]), {}),
    (EnlistGroup("t", ME, "g"), Done()),
    (CommitMarks("t", ME, "g", {T0: Mark(5, "note")}), {}),
    (EndTransaction("t", ME, commit=True), Identity(0, 0)),
    (FindPositions({T0: Spot.AT_HAND}), {T0: Found(0, 0, 0)}),
    (FindEpochEnds({T0: 3}, {T0: 4}), {T0: EpochEnd(0, 0)}),
    (ReadMarks("t", [T0]), {T0: Mark(0, "t", 0)}),
    (ListGroups(), frozenset("t")),
    (StoreMarks("t", {T0: Mark(5, "note", 6)}), {}),
    (ReadSettings("t"), TopicSettings({"t": "t"}, is_compacted=False)),
    (SetFilter("t", "region = eu"), Done()),
    (ReadFilter("t"), GroupFilter(None)),
]


def in_all_versions() -> list[Any]:
    return [
        pytest.param(api, version, sayable(request, version), told, id=f"{api}-{version}")
        for request, told in SAMPLES
        for api in [EXCHANGES[type(request)].api]
        for version in range(1 if api is FIND_COORDINATOR else api.oldest, api.newest + 1)
    ]


def sayable(request: Request[Any], version: int) -> Request[Any]:
    """The same as far as this version has words for it."""
    if isinstance(request, Identify) and version < CURRENT_FROM:
        return dataclasses.replace(request, current=None)
    return request


def said(api: Api, version: int, request: Request[Any]) -> Any:
    """What kio reads from the body of a request."""
    data = b"".join(EXCHANGES[type(request)].encode(request, version))
    told, size = entity_reader(getattr(schema.module_of(api, version, "request"), f"{api}Request"))(data, 0)
    assert size == len(data)
    return told


@cache
def sample_answer(api: Api, version: int) -> bytes:
    return kio_bytes(sample(getattr(schema.module_of(api, version, "response"), f"{api}Response")))


def heard(api: Api, version: int, request: Request[Any], body: bytes) -> Any:
    connection = greeted(pinned(api, version), NEWEST | {FILTER_FEATURE: 1})
    connection.send(request, "token")
    (event,) = receive(connection, answer(api, version, 2, body))
    assert isinstance(event, Answered)
    return event.answer


@pytest.mark.parametrize(("api", "version", "request_", "told"), in_all_versions())
def test_an_answer_becomes_neutral_words(api: Api, version: int, request_: Request[Any], told: Any) -> None:
    if api is METADATA and version < 2:
        told = dataclasses.replace(told, cluster_id=None)
    if api is METADATA and version < 7:
        told = dataclasses.replace(told, topics={"t": TopicView({0: PartitionView(0, -1)})})
    if api is END_TXN and version < 5:
        told = ME
    if api is LIST_OFFSETS and version < 4:
        told = {T0: Found(0, 0, -1)}
    if api is OFFSET_FETCH and version < 5:
        told = {T0: Mark(0, "t", -1)}
    assert heard(api, version, request_, sample_answer(api, version)) == told


@pytest.mark.parametrize(("api", "version", "request_", "told"), in_all_versions())
def test_an_answer_cut_anywhere_is_refused(api: Api, version: int, request_: Request[Any], told: Any) -> None:
    body = sample_answer(api, version)
    for cut in range(len(body)):
        with pytest.raises(DecodeError):
            heard(api, version, request_, body[:cut])


@pytest.mark.parametrize(("api", "version", "request_", "told"), in_all_versions())
@given(data=st.data())
def test_a_damaged_answer_raises_nothing_but_decode_errors(
    api: Api, version: int, request_: Request[Any], told: Any, data: st.DataObject
) -> None:
    body = bytearray(sample_answer(api, version))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    with contextlib.suppress(DecodeError):
        heard(api, version, request_, bytes(body))


@pytest.mark.parametrize(("request_", "told"), SAMPLES)
@given(body=st.binary(max_size=100))
def test_garbage_raises_nothing_but_decode_errors(request_: Request[Any], told: Any, body: bytes) -> None:
    api = EXCHANGES[type(request_)].api
    with contextlib.suppress(DecodeError):
        heard(api, api.newest, request_, body)


@pytest.mark.parametrize(("api", "version", "request_", "told"), in_all_versions())
def test_kio_reads_the_same(api: Api, version: int, request_: Request[Any], told: Any) -> None:
    data = sample_answer(api, version)
    kind = getattr(schema.module_of(api, version, "response"), f"{api}Response")
    theirs, end = entity_reader(kind)(data, 0)
    ours = schema.reader_of_answer(api, version)(memoryview(data), 0)
    assert (values_of(ours[0]), ours[1]) == (values_of(theirs), end)


def values_of(part: Any) -> Any:
    """A structure of either reader as plain values."""
    if dataclasses.is_dataclass(part):
        return {field.name: values_of(getattr(part, field.name)) for field in dataclasses.fields(part)}
    if hasattr(part, "_asdict"):
        return {name: values_of(value) for name, value in part._asdict().items()}
    return tuple(map(values_of, part)) if isinstance(part, tuple) else part


@pytest.mark.parametrize(("api", "version", "request_", "told"), in_all_versions())
def test_unknown_tags_of_a_newer_broker_are_skipped(api: Api, version: int, request_: Request[Any], told: Any) -> None:
    if api.is_flexible(version):
        body = sample_answer(api, version)
        assert body.endswith(NO_TAGS)
        tagged = body[:-1] + b"\x02" + b"\x63\x03abc" + b"\x85\x01\x00"
        assert heard(api, version, request_, tagged) == heard(api, version, request_, body)


@pytest.mark.parametrize("count", [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\x05", b"\xff" * 9 + b"\x01"])
def test_an_array_longer_than_its_frame_is_refused_at_once(count: bytes) -> None:
    with pytest.raises(DecodeError, match=r"array|uvarint"):
        heard(METADATA, 12, LookUp(None), bytes(4) + count)


def with_code(api: Api, version: int, code: int) -> bytes:
    """The sample answer with this code wherever there is one."""

    def changed(part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple(map(changed, part))
        if not dataclasses.is_dataclass(part):
            return part
        values = {field.name: changed(getattr(part, field.name)) for field in dataclasses.fields(part)}
        codes = [field.name for field in dataclasses.fields(part) if field.metadata.get("kafka_type") == "error_code"]
        return dataclasses.replace(part, **values | dict.fromkeys(codes, SimpleNamespace(value=code)))  # type: ignore[type-var]

    whole = sample(getattr(schema.module_of(api, version, "response"), f"{api}Response"))
    return kio_bytes(changed(whole))


@pytest.mark.parametrize(("api", "version", "request_", "told"), in_all_versions())
@pytest.mark.parametrize(("code", "kind"), [(3, UnknownTopicError), (9999, UnforeseenError)])
def test_an_error_code_becomes_an_error(
    api: Api, version: int, request_: Request[Any], told: Any, code: int, kind: type[PenstockError]
) -> None:
    answered = heard(api, version, request_, with_code(api, version, code))
    if isinstance(answered, ClusterView):
        answered = answered.topics["t"].error
    if isinstance(answered, dict):
        assert set(answered) == {T0}
        answered = answered[T0]
    assert isinstance(answered, kind)


@pytest.mark.parametrize("version", range(METADATA.oldest, METADATA.newest + 1))
def test_looking_up_names_topics_all_or_none(version: int) -> None:
    def topics(request: LookUp) -> Any:
        told = said(METADATA, version, request).topics
        return None if told is None else [topic.name for topic in told]

    assert topics(LookUp(None)) is None
    assert topics(LookUp(frozenset())) == []
    assert topics(LookUp(frozenset({"b", "a"}))) == ["a", "b"]
    if version >= 4:
        assert not said(METADATA, version, LookUp(None)).allow_auto_topic_creation
        assert said(METADATA, version, LookUp(None, create=True)).allow_auto_topic_creation


def test_a_leader_that_is_not_among_the_brokers_is_none() -> None:
    module = schema.module_of(METADATA, 12, "response")
    whole = sample(module.MetadataResponse)
    (topic,) = whole.topics
    partitions = tuple(
        dataclasses.replace(topic.partitions[0], partition_index=number, leader_id=leader)
        for number, leader in enumerate((0, -1, 9))
    )
    whole = dataclasses.replace(whole, topics=(dataclasses.replace(topic, partitions=partitions),), controller_id=-1)
    cluster = heard(METADATA, 12, LookUp(None), kio_bytes(whole))
    leaders = {number: view.leader for number, view in cluster.topics["t"].partitions.items()}
    assert leaders == {0: 0, 1: None, 2: None}
    assert cluster.controller is None


def test_creating_says_partitions_replicas_and_settings() -> None:
    (topic,) = said(CREATE_TOPICS, 7, CreateTopic("t", 3, 2, {"a": "b"}, 1234)).topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("t", 3, 2)
    assert [(config.name, config.value) for config in topic.configs] == [("a", "b")]


@pytest.mark.parametrize("request_", [CreateTopic("t"), CreateTopic("t", 3), CreateTopic("t", replicas=3)])
def test_old_brokers_must_be_told_the_numbers_of_a_new_topic(request_: CreateTopic) -> None:
    with pytest.raises(RefusedError, match="topic t: this broker must be told"):
        said(CREATE_TOPICS, 3, request_)
    assert said(CREATE_TOPICS, 4, request_)


def test_a_producer_without_identity_asks_for_its_first() -> None:
    told = said(INIT_PRODUCER_ID, 5, Identify())
    assert (told.transactional_id, told.producer_id, told.producer_epoch) == (None, -1, -1)
    told = said(INIT_PRODUCER_ID, 5, Identify("t", 1234, ME))
    assert (told.transactional_id, told.producer_id, told.producer_epoch) == ("t", 7, 3)
    assert told.transaction_timeout == timedelta(milliseconds=1234)


def test_a_broker_that_cannot_renew_an_identity_is_not_asked_to_take_it_over() -> None:
    with pytest.raises(RefusedError, match="transactional id t: this broker cannot renew an identity"):
        said(INIT_PRODUCER_ID, CURRENT_FROM - 1, Identify("t", 1234, ME))
    assert said(INIT_PRODUCER_ID, CURRENT_FROM - 1, Identify("t", 1234)).transactional_id == "t"
    assert said(INIT_PRODUCER_ID, CURRENT_FROM - 1, Identify(None, 1234, ME)).transactional_id is None


def test_a_broker_without_transactions_is_not_asked_where_they_are_kept() -> None:
    with pytest.raises(RefusedError, match="knows no transactions"):
        said(FIND_COORDINATOR, 0, FindHome("t"))
    assert said(FIND_COORDINATOR, 0, FindHome("g", of_group=True)).key == "g"
    assert said(FIND_COORDINATOR, 3, FindHome("t")).key_type == 1
    assert said(FIND_COORDINATOR, 6, FindHome("g", of_group=True)).key_type == 0
    assert said(FIND_COORDINATOR, 6, FindHome("t")).coordinator_keys == ("t",)


def test_partitions_of_one_topic_are_enlisted_together() -> None:
    partitions = [Partition("t", 0), Partition("u", 5), Partition("t", 1)]
    told = said(ADD_PARTITIONS_TO_TXN, 3, Enlist("t", ME, partitions))
    assert [(topic.name, topic.partitions) for topic in told.v3_and_below_topics] == [("t", (0, 1)), ("u", (5,))]


def test_a_member_that_the_version_cannot_name_is_refused() -> None:
    request = CommitMarks("t", ME, "g", {T0: Mark(5)}, GroupMember(4, "m", "i"))
    with pytest.raises(RefusedError, match="group g"):
        said(TXN_OFFSET_COMMIT, 2, request)
    told = said(TXN_OFFSET_COMMIT, 3, request)
    assert (told.generation_id, told.member_id, told.group_instance_id) == (4, "m", "i")


@pytest.mark.parametrize("version", range(LIST_OFFSETS.oldest, LIST_OFFSETS.newest + 1))
def test_spots_and_times_are_asked_for_as_numbers(version: int) -> None:
    spots: dict[Partition, Spot | int] = {T0: Spot.LATEST, Partition("t", 1): Spot.EARLIEST, Partition("u", 0): 1234}
    told = said(LIST_OFFSETS, version, FindPositions(spots, committed=False))
    assert (told.replica_id, told.isolation_level) == (-1, 0)
    rows = {(topic.name, row.partition_index): row.timestamp for topic in told.topics for row in topic.partitions}
    assert rows == {("t", 0): -1, ("t", 1): -2, ("u", 0): 1234}
    told = said(LIST_OFFSETS, version, FindPositions({T0: Spot.AT_HAND}))
    assert told.isolation_level == 1
    assert told.topics[0].partitions[0].timestamp == (-4 if version >= 8 else -2)


def test_a_position_that_is_not_there_is_none() -> None:
    row = response(LIST_OFFSETS, 8, "ListOffsetsPartitionResponse", partition_index=0, error_code=schema_error(0))
    topic = response(LIST_OFFSETS, 8, "ListOffsetsTopicResponse", name="t", partitions=(row,))
    body = kio_bytes(response(LIST_OFFSETS, 8, topics=(topic,), throttle_time=schema_time(0)))
    assert heard(LIST_OFFSETS, 8, FindPositions({T0: 5}), body) == {T0: Found(None)}


@pytest.mark.parametrize("version", range(OFFSET_FOR_LEADER_EPOCH.oldest, OFFSET_FOR_LEADER_EPOCH.newest + 1))
def test_an_epochs_end_is_asked_for_as_a_consumer(version: int) -> None:
    told = said(OFFSET_FOR_LEADER_EPOCH, version, FindEpochEnds({T0: 3}, {T0: 4}))
    (row,) = told.topics[0].partitions
    assert (row.partition, row.leader_epoch, row.current_leader_epoch) == (0, 3, 4)
    assert getattr(told, "replica_id", -1) == -1


@pytest.mark.parametrize("version", range(OFFSET_FETCH.oldest, OFFSET_FETCH.newest + 1))
def test_marks_are_asked_for_as_stable_ones(version: int) -> None:
    told = said(OFFSET_FETCH, version, ReadMarks("g", [T0, Partition("t", 1)]))
    assert getattr(told, "require_stable", True)
    group = told.groups[0] if version >= 8 else told
    assert group.group_id == "g"
    assert [(topic.name, topic.partition_indexes) for topic in group.topics] == [("t", (0, 1))]


def test_partitions_without_a_mark_are_left_out_and_errors_that_stay_win() -> None:
    def told(*rows: tuple[int, int]) -> Any:
        partitions = tuple(
            response(
                *(OFFSET_FETCH, 7, "OffsetFetchResponsePartition"),
                partition_index=number,
                committed_offset=offset,
                metadata=None,
                error_code=schema_error(code),
            )
            for number, (offset, code) in enumerate(rows)
        )
        topic = response(OFFSET_FETCH, 7, "OffsetFetchResponseTopic", name="t", partitions=partitions)
        body = kio_bytes(
            response(OFFSET_FETCH, 7, topics=(topic,), error_code=schema_error(0), throttle_time=schema_time(0))
        )
        asked = [Partition("t", number) for number in range(len(rows))]
        return heard(OFFSET_FETCH, 7, ReadMarks("g", asked), body)

    assert told((5, 0), (-1, 0)) == {T0: Mark(5)}
    assert told((-1, 88), (5, 0)).retriable
    assert not told((-1, 88), (-1, 29)).retriable


@pytest.mark.parametrize("version", range(LIST_GROUPS.oldest, LIST_GROUPS.newest + 1))
def test_groups_of_every_state_and_type_are_asked_for(version: int) -> None:
    told = said(LIST_GROUPS, version, ListGroups())
    assert getattr(told, "states_filter", ()) == getattr(told, "types_filter", ()) == ()


def test_a_broker_that_has_not_read_all_of_its_books_is_asked_again() -> None:
    told = heard(LIST_GROUPS, 5, ListGroups(), with_code(LIST_GROUPS, 5, 14))
    assert isinstance(told, BusyError)


@pytest.mark.parametrize("version", range(OFFSET_COMMIT.oldest, OFFSET_COMMIT.newest + 1))
def test_marks_are_stored_without_being_a_member(version: int) -> None:
    told = said(OFFSET_COMMIT, version, StoreMarks("g", {T0: Mark(5, "note", 6)}))
    assert (told.group_id, told.generation_id_or_member_epoch, told.member_id) == ("g", -1, "")
    (row,) = told.topics[0].partitions
    assert (row.partition_index, row.committed_offset, row.committed_metadata) == (0, 5, "note")
    assert getattr(row, "committed_leader_epoch", 6) == 6
    if version >= 7:
        assert told.group_instance_id is None


def test_an_instance_that_the_version_cannot_name_is_refused() -> None:
    request = StoreMarks("g", {T0: Mark(5)}, GroupMember(4, "m", "i"))
    with pytest.raises(RefusedError, match="group g"):
        said(OFFSET_COMMIT, 6, request)
    assert said(OFFSET_COMMIT, 7, request).group_instance_id == "i"


def settings_told(**configs: tuple[str | None, int]) -> TopicSettings:
    """What is heard of a topic with these settings: value, and where it comes from."""
    settings = tuple(
        response(
            *(DESCRIBE_CONFIGS, 2, "DescribeConfigsResourceResult"),
            name=name.replace("_", "."),
            value=value,
            read_only=False,
            config_source=source,
            is_sensitive=False,
            synonyms=(),
        )
        for name, (value, source) in configs.items()
    )
    result = response(
        *(DESCRIBE_CONFIGS, 2, "DescribeConfigsResult"),
        error_message=None,
        resource_type=2,
        resource_name="t",
        configs=settings,
        error_code=schema_error(0),
    )
    body = kio_bytes(response(DESCRIBE_CONFIGS, 2, results=(result,), throttle_time=schema_time(0)))
    told: TopicSettings = heard(DESCRIBE_CONFIGS, 2, ReadSettings("t"), body)
    return told


@pytest.mark.parametrize("policy", ["compact", "delete", "compact,delete", None])
def test_a_compacted_topic_is_told_by_its_policy(policy: str | None) -> None:
    told = settings_told(cleanup_policy=(policy, 5))
    assert told == TopicSettings({"cleanup.policy": policy}, "compact" in (policy or ""))
    assert said(DESCRIBE_CONFIGS, 2, ReadSettings("t")).resources[0].resource_type == 2


def test_settings_that_a_copy_must_have_are_told_unless_they_are_kafkas_defaults() -> None:
    told = settings_told(
        max_message_bytes=("5000000", 4),
        cleanup_policy=("compact", 1),
        message_timestamp_type=("CreateTime", 5),
        segment_bytes=("1000000", 1),
    )
    assert told.for_copies == {"max.message.bytes": "5000000", "cleanup.policy": "compact"}
    assert told.batch_bytes_max == 5_000_000


def test_what_no_version_can_say_is_refused() -> None:
    for request in (EnlistGroup("t" * 40_000, ME, "g"), EnlistGroup("\ud800", ME, "g"), EnlistGroup("t", ME, "g")):
        connection = greeted(pinned(EXCHANGES[EnlistGroup].api, 0))
        if request.transactional_id == "t":
            connection.send(request, None)
            continue
        with pytest.raises(RefusedError, match="AddOffsetsToTxn: cannot be said in version 0"):
            connection.send(request, None)
        assert connection.unanswered() == []


def test_answers_about_others_than_asked_are_refused() -> None:
    for request, _ in SAMPLES:
        api = EXCHANGES[type(request)].api
        if api in (METADATA, LIST_GROUPS, INIT_PRODUCER_ID, END_TXN, PRODUCE) or isinstance(request, EnlistGroup):
            continue
        other = other_than(request)
        with pytest.raises(DecodeError):
            heard(api, api.newest, other, sample_answer(api, api.newest))


def other_than(request: Request[Any]) -> Request[Any]:
    match request:
        case Enlist():
            return dataclasses.replace(request, partitions=[Partition("t", 1)])
        case CommitMarks() | StoreMarks():
            return dataclasses.replace(request, marks={Partition("u", 0): Mark(0)})
        case FindPositions():
            return FindPositions({Partition("t", 1): 5})
        case FindEpochEnds():
            return FindEpochEnds({Partition("t", 1): 5})
        case ReadMarks():
            return ReadMarks("other", [T0])
        case ReadSettings():
            return ReadSettings("other")
        case SetFilter() | ReadFilter():
            return dataclasses.replace(request, group="other")
        case _:
            return dataclasses.replace(request, name="other")  # type: ignore[type-var]
