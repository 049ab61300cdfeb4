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

from penstock.errors import DecodeError, PenstockError, RefusedError, UnforeseenError, UnknownTopicError
from penstock.wire.kafka import schema
from penstock.wire.kafka.primitives import NO_TAGS
from penstock.wire.kafka.requests import EXCHANGES
from penstock.wire.kafka.versions import (
    ADD_PARTITIONS_TO_TXN,
    CREATE_TOPICS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    Api,
)
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
    FindHome,
    GroupMember,
    GrowTopic,
    Identify,
    Identity,
    LookUp,
    Mark,
    Partition,
    PartitionView,
    Request,
    TopicView,
)
from tests.wire.kafka.ranges import pinned
from tests.wire.kafka.talk import answer, greeted, kio_bytes, receive, sample

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
]


def in_all_versions() -> list[Any]:
    return [
        pytest.param(api, version, request, told, id=f"{api}-{version}")
        for request, told in SAMPLES
        for api in [EXCHANGES[type(request)].api]
        for version in range(1 if api is FIND_COORDINATOR else api.oldest, api.newest + 1)
    ]


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
    connection = greeted(pinned(api, version))
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
        if api in (METADATA, INIT_PRODUCER_ID, END_TXN, PRODUCE) or isinstance(request, EnlistGroup):
            continue
        other = other_than(request)
        with pytest.raises(DecodeError):
            heard(api, api.newest, other, sample_answer(api, api.newest))


def other_than(request: Request[Any]) -> Request[Any]:
    match request:
        case Enlist():
            return dataclasses.replace(request, partitions=[Partition("t", 1)])
        case CommitMarks():
            return dataclasses.replace(request, marks={Partition("u", 0): Mark(0)})
        case _:
            return dataclasses.replace(request, name="other")  # type: ignore[type-var]
