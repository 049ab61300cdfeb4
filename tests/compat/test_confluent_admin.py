"""Administration with confluent-kafka: topics, settings, places, groups, the cluster."""

from __future__ import annotations

from typing import Any

from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.compat.confluent import SPEC, TIME_MS, admin, create, outcome, outcome_of, outcomes, producer, send
from tests.compat.sides import LIMIT_S, Outcome, Side, Sides, until


def test_topics_are_made_and_refused(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        def make(part: str, partitions: int = 1, copies: int = 1, name: str | None = None, **more: Any) -> Any:
            topic = side.name(part) if name is None else name
            where: dict[str, Any] = {} if "replica_assignment" in more else {"replication_factor": copies}
            made = NewTopic(topic, partitions, **where, **more)
            return outcome_of(admin(side).create_topics([made])[topic])

        return {
            "plain": make("plain", 3),
            "again": make("plain", 3),
            "defaults": make("defaults", -1, -1),
            "no partitions": make("none", 0),
            "three copies": make("copies", 1, 3),
            "bad name": make("", name="a b"),
            "name of dots": make("", name=".."),
            "name too long": make("", name="x" * 250),
            "longest name": make("", name=side.case[:40] + "x" * (249 - len(side.case[:40]))),
            "settings": make("settings", config={"retention.ms": "5000", "max.message.bytes": "2000"}),
            "unknown setting": make("unknown", config={"no.such.setting": "1"}),
            "bad value": make("bad", config={"retention.ms": "soon"}),
            "by hand": make("hand", 2, replica_assignment=[[1], [1]]),
            "by hand, unknown node": make("hand2", replica_assignment=[[7]]),
        }

    told = sides.alike(script)
    assert (told["plain"], told["again"]) == ("done", {"error": "TOPIC_ALREADY_EXISTS"})


VALUES = {
    "cleanup.policy": ("delete", "compact", "compact,delete", "none"),
    "compression.type": ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd", "rar"),
    "delete.retention.ms": ("1000",),
    "flush.messages": ("1", "0"),
    "flush.ms": ("1000",),
    "max.message.bytes": ("0", "100", "-1", "2147483647"),
    "message.timestamp.after.max.ms": ("0", "9223372036854775807", "-1"),
    "message.timestamp.before.max.ms": ("0", "9223372036854775807", "-1"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", "none"),
    "min.insync.replicas": ("1", "2", "0"),
    "retention.bytes": ("-1", "0", "1000", "-2"),
    "retention.ms": ("-1", "0", "1000", "-2", "1.5", ""),
    "segment.bytes": ("1048576", "65536", "100"),
    "segment.ms": ("1", "1000", "0"),
    "unclean.leader.election.enable": ("true", "false", "maybe"),
}


def test_what_a_topic_can_be_set_to(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        def make(number: int, name: str, value: str) -> Any:
            topic = side.name(str(number))
            made = NewTopic(topic, 1, 1, config={name: value})
            return outcome_of(admin(side).create_topics([made], validate_only=True)[topic])

        pairs = [(name, value) for name, values in VALUES.items() for value in values]
        made = {f"{name}={value}": make(number, name, value) for number, (name, value) in enumerate(pairs)}
        return {name: "done" if told == "done" else told["error"] for name, told in made.items()}

    assert set(sides.alike(script).values()) == {"done", "INVALID_CONFIG"}


def test_what_would_be_made_is_checked(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        client, topic = admin(side), side.name("t")
        told = {"checked": outcome_of(client.create_topics([NewTopic(topic, 2, 1)], validate_only=True)[topic])}
        told["there"] = sorted(name for name in client.list_topics(timeout=LIMIT_S).topics if name == topic)
        return told

    assert sides.alike(script) == {"checked": "done", "there": []}


def test_topics_are_described(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        client, topic = admin(side), create(side, "t", 3)
        names = [topic, side.name("nothing")]
        described = client.describe_topics(TopicCollection(names))
        listed = client.list_topics(topic, timeout=LIMIT_S)
        return {
            "described": outcomes(described, _topic),
            "listed": [sorted(each.partitions) for each in listed.topics.values()],
            "ids differ": len({str(each) for each in _ids(described)}) == len(list(_ids(described))),
        }

    def _ids(described: Any) -> list[Any]:
        return [future.result(LIMIT_S).topic_id for future in described.values() if not future.exception(LIMIT_S)]

    told = sides.alike(script)
    (first, second) = told["described"].values()
    assert len(first["partitions"]) == 3
    assert second == {"error": "UNKNOWN_TOPIC_OR_PART"}


def _topic(found: Any) -> Outcome:
    return {
        "name": found.name,
        "internal": found.is_internal,
        "partitions": [
            [each.id, each.leader.id, [node.id for node in each.replicas], [node.id for node in each.isr]]
            for each in found.partitions
        ],
    }


def test_topics_grow_and_do_not_shrink(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        client, topic = admin(side), create(side, "t", 2)

        def grow(count: int, name: str = topic) -> Any:
            return outcome_of(client.create_partitions([NewPartitions(name, count)])[name])

        told = {"more": grow(4), "same": grow(4), "fewer": grow(1), "unknown": grow(4, side.name("nothing"))}
        count = until(
            lambda: len(client.list_topics(topic, timeout=LIMIT_S).topics[topic].partitions), lambda n: n == 4
        )
        sent = send(producer(side), topic, [b"a"], partition=3)
        return {**told, "count": count, "sent": sent}

    told = sides.alike(script)
    assert (told["more"], told["count"], told["fewer"]) == ("done", 4, {"error": "INVALID_PARTITIONS"})


def test_topics_are_deleted_and_made_anew(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        client, topic = admin(side), create(side, "t")
        send(producer(side), topic, [b"old"])

        def there() -> bool:
            return topic in client.list_topics(timeout=LIMIT_S).topics

        told = {
            "delete": outcome_of(client.delete_topics([topic])[topic]),
            "unknown": outcome_of(client.delete_topics([side.name("nothing")])[side.name("nothing")]),
            "gone": not until(there, lambda found: not found),
        }
        create(side, "t", 2)
        return {**told, "sent": send(producer(side), topic, [b"new"], partition=0)}

    told = sides.alike(script)
    assert told["sent"] == [{"partition": 0, "offset": 0}]


def settings_of(side: Side, topic: str, names: list[str]) -> Any:
    """Value and source of settings, source 1 being the topic itself, and whether they are fixed."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return outcome_of(
        admin(side).describe_configs([resource])[resource],
        lambda found: {
            name: f"{found[name].value}, source {found[name].source}{', fixed' if found[name].is_read_only else ''}"
            for name in names
            if name in found
        },
    )


SETTINGS = [
    "cleanup.policy",
    "compression.type",
    "delete.retention.ms",
    "flush.messages",
    "flush.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.insync.replicas",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.ms",
]


def test_settings_of_topics_are_told(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", config={"retention.ms": "60000", "max.message.bytes": "2000"})
        return {"set": settings_of(side, topic, SETTINGS), "unknown": settings_of(side, side.name("nothing"), SETTINGS)}

    told = sides.alike(script)
    assert told["set"]["retention.ms"] == "60000, source 1"
    assert told["set"]["max.message.bytes"] == "2000, source 1"


def test_settings_of_topics_are_changed(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", config={"retention.ms": "60000"})

        def alter(name: str, value: str | None, how: AlterConfigOpType = AlterConfigOpType.SET, of: str = topic) -> Any:
            entry = ConfigEntry(name, value, incremental_operation=how)
            resource = ConfigResource(ResourceType.TOPIC, of, incremental_configs=[entry])
            return outcome_of(admin(side).incremental_alter_configs([resource])[resource])

        def value(name: str) -> Any:
            return settings_of(side, topic, [name])[name]

        told: Outcome = {"set": alter("retention.ms", "70000")}
        told["is set"] = until(lambda: value("retention.ms"), lambda found: found == "70000, source 1")
        told["delete"] = alter("retention.ms", None, AlterConfigOpType.DELETE)
        told["is default"] = until(lambda: value("retention.ms"), lambda found: found != "70000, source 1")
        told["unknown"] = alter("no.such.setting", "1")
        told["bad value"] = alter("retention.ms", "soon")
        told["too small"] = alter("max.message.bytes", "-5")
        told["unknown topic"] = alter("retention.ms", "1", of=side.name("nothing"))
        told["append to a number"] = alter("retention.ms", "1", AlterConfigOpType.APPEND)
        return told

    told = sides.alike(script)
    assert told["is set"] == "70000, source 1"
    assert told["unknown"] != "done"


def test_a_changed_setting_holds_for_the_next_message(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        entry = ConfigEntry("max.message.bytes", "500", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin(side).incremental_alter_configs([resource])[resource].result(LIMIT_S)
        source = producer(side)
        return {"sent": until(lambda: send(source, topic, [b"x" * 1000]), lambda sent: "error" in sent[0])}

    assert sides.alike(script) == {"sent": [{"error": "MSG_SIZE_TOO_LARGE"}]}


def test_places_are_listed(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 2)
        times = [0, 5, 9, 2, 1]
        source = producer(side, linger_ms=0)
        for n in times:
            send(source, topic, [{"value": b"x", "timestamp": TIME_MS + 1000 * n}], partition=0)

        def listed(spec: Any, partition: int = 0, name: str = topic) -> Any:
            place = TopicPartition(name, partition)
            found = admin(side).list_offsets({place: spec})[place]
            return outcome_of(found, lambda info: [info.offset, info.timestamp])

        return {
            "earliest": listed(SPEC.earliest()),
            "latest": listed(SPEC.latest()),
            "largest time": listed(SPEC.max_timestamp()),
            "by time": [listed(SPEC.for_timestamp(TIME_MS + 1000 * n)) for n in range(12)],
            "empty, earliest": listed(SPEC.earliest(), 1),
            "empty, largest time": listed(SPEC.max_timestamp(), 1),
            "empty, by time": listed(SPEC.for_timestamp(TIME_MS), 1),
            "unknown partition": listed(SPEC.latest(), 9),
        }

    told = sides.alike(script)
    assert told["largest time"][0] == 2
    assert [place for place, _ in told["by time"]] == [0, *[1] * 5, *[2] * 4, -1, -1]


def test_records_are_deleted(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 2)
        send(producer(side), topic, [b"%d" % n for n in range(10)], partition=0)

        def delete(partition: int, offset: int, name: str = topic) -> Any:
            place = TopicPartition(name, partition, offset)
            return outcome_of(admin(side).delete_records([place])[place], lambda found: found.low_watermark)

        return {
            "some": delete(0, 4),
            "fewer": delete(0, 2),
            "beyond": delete(0, 11),
            "all": delete(0, -1),
            "of an empty one": delete(1, 0),
            "unknown partition": delete(5, 1),
        }

    told = sides.alike(script)
    assert (told["some"], told["all"]) == (4, 10)


def test_the_cluster_is_described(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        def shown(found: Any) -> Outcome:
            return {
                "nodes": [[node.id, node.host] for node in found.nodes],
                "controller": found.controller.id,
                "has an id": bool(found.cluster_id),
            }

        listed = admin(side).list_topics(timeout=LIMIT_S)
        return {
            "described": outcome_of(admin(side).describe_cluster(), shown),
            "listed": [[each.id, each.host] for each in listed.brokers.values()],
            "same id": outcome_of(admin(side).describe_cluster(), lambda found: found.cluster_id) == listed.cluster_id,
        }

    told = sides.alike(script)
    assert told["described"]["nodes"] == told["listed"] == [[1, "127.0.0.1"]]
    assert told["same id"] is True


def test_many_topics_in_one_request(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topics = [NewTopic(side.name(f"t{n}"), n % 3 + 1, 1) for n in range(20)]
        made = outcomes(admin(side).create_topics(topics))
        twice = [NewTopic(side.name("twice"), 1, 1)] * 2
        repeated = outcome(lambda: outcomes(admin(side).create_topics(twice)))
        deleted = outcomes(admin(side).delete_topics([topic.topic for topic in topics]))
        return {"made": made, "deleted": deleted, "repeated": repeated}

    told = sides.alike(script)
    assert set(told["made"].values()) == set(told["deleted"].values()) == {"done"}
