"""Kafka's console, performance and administration tools on Java, and members of groups."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat import java
from tests.compat.confluent import TIME_MS, create, producer, read, send, shown, values
from tests.compat.java import GroupMember, Printed, Tools, failure, settled
from tests.compat.sides import KAFKA, PENSTOCK, Outcome, Side, Sides, until

# A topic's id, and what this Kafka was started with for tests.
CHANCE = re.compile(r"TopicId: \S+\t|min\.insync\.replicas=1,|,?file\.delete\.delay\.ms=1000")
hosts: dict[str, Tools] = {}


@pytest.fixture(scope="module", autouse=True)
def tools(kafka_parts: None) -> Iterator[None]:
    """A Java for the tools of each side."""
    hosts.update({label: Tools() for label in (KAFKA, PENSTOCK)})
    yield
    while hosts:
        hosts.popitem()[1].close()


def run(side: Side, tool: str, *arguments: str, given: str = "") -> Printed:
    """Run a tool to its end."""
    return hosts[side.label].run(tool, ["--bootstrap-server", side.bootstrap, *arguments], given)


def done(side: Side, tool: str, *arguments: str, given: str = "") -> Printed:
    """Run a tool that must succeed."""
    printed = run(side, tool, *arguments, given=given)
    assert printed.status == 0, f"{printed.errors}\n{printed.lines}"
    return printed


def test_console_producer_and_consumer(sides: Sides) -> None:
    lines = [f"a:{n},b:x\tkey-{n}\tvalue {n}" for n in range(20)] + ["c:y\tgone\tNULL", "d:z\tumlaut\tgrün 值"]
    parse = [
        argument
        for setting in ("parse.headers=true", "parse.key=true", "null.marker=NULL")
        for argument in ("--reader-property", setting)
    ]
    printing = [
        argument
        for what in ("key", "headers", "partition", "offset")
        for argument in ("--formatter-property", f"print.{what}=true")
    ]

    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        compress = ("--compression-codec", "zstd")
        done(side, java.CONSOLE_PRODUCER, "--topic", topic, *parse, *compress, given="\n".join(lines) + "\n")
        count = ("--max-messages", str(len(lines)), "--timeout-ms", "30000")
        printed = done(side, java.CONSOLE_CONSUMER, "--topic", topic, "--from-beginning", *count, *printing)
        found = [shown(message) for message in read(side, topic)]
        return {"printed": printed.lines, "read": [[each["key"], each["value"], each["headers"]] for each in found]}

    told = sides.alike(script)
    assert told["printed"][3] == "Partition:0\tOffset:3\ta:3,b:x\tkey-3\tvalue 3"
    assert told["read"][-2:] == [["gone", None, [["c", "y"]]], ["umlaut", "grün 值", [["d", "z"]]]]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_console_consumers_of_a_group_go_on_where_it_was(sides: Sides, protocol: str) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 2)
        for number in range(2):
            send(producer(side), topic, [b"%d-%d" % (number, n) for n in range(10)], partition=number)
        group = ("--topic", topic, "--group", side.name("group"), "--timeout-ms", "20000")
        how = ("--command-property", f"group.protocol={protocol}")
        first = done(side, java.CONSOLE_CONSUMER, *group, *how, "--from-beginning", "--max-messages", "12").lines
        rest = done(side, java.CONSOLE_CONSUMER, *group, *how, "--max-messages", "8").lines
        described = done(side, java.GROUPS, "--describe", "--group", side.name("group")).words()
        return {"first": len(first), "all": sorted(first + rest), "described": described}

    told = sides.alike(script)
    assert told["all"] == sorted(f"{number}-{n}" for number in range(2) for n in range(10))


PRODUCERS = {
    "small batches": ("acks=all", "batch.size=1000"),
    "not idempotent": ("acks=1", "enable.idempotence=false"),
    "acks 0, lz4": ("acks=0", "compression.type=lz4", "enable.idempotence=false"),
    "gzip": ("compression.type=gzip",),
    "snappy": ("compression.type=snappy",),
    "zstd": ("compression.type=zstd",),
}


@pytest.mark.parametrize("settings", PRODUCERS.values(), ids=PRODUCERS)
def test_producer_performance(sides: Sides, settings: tuple[str, ...]) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 3)
        load = ("--topic", topic, "--num-records", "3000", "--record-size", "100", "--throughput", "-1")
        printed = done(side, java.PRODUCER_PERFORMANCE, *load, "--command-property", *settings)
        found = until(lambda: read(side, topic, 3), lambda messages: len(messages) == 3000)
        return {"sent": printed.lines[-1].split(" records sent")[0], "stored": len(found)}

    assert sides.alike(script) == {"sent": "3000", "stored": 3000}


def test_producer_performance_in_transactions(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 2)
        load = ("--topic", topic, "--num-records", "600", "--record-size", "100", "--throughput", "1000")
        transactions = ("--transactional-id", side.name("tx"), "--transaction-duration-ms", "100")
        done(side, java.PRODUCER_PERFORMANCE, *load, *transactions)
        found = read(side, topic, 2, isolation_level="read_committed")
        listed = done(side, java.TRANSACTIONS, "list").words()
        state = [words[3] for words in listed if words[0] == side.name("tx")]
        return {"committed": len(found), "state": state}

    assert sides.alike(script) == {"committed": 600, "state": ["CompleteCommit"]}


def test_consumer_performance(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 3)
        for number in range(3):
            send(producer(side, compression_type="lz4"), topic, [b"x" * 100] * 2000, partition=number)
        load = ("--topic", topic, "--num-records", "6000", "--timeout", "30000", "--hide-header")
        printed = done(side, java.CONSUMER_PERFORMANCE, *load, "--group", side.name("group"))
        return {"read": printed.lines[-1].split(", ")[4]}

    assert sides.alike(script) == {"read": "6000"}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_java_members_join_and_leave(sides: Sides, protocol: str) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 4)
        for number in range(4):
            send(producer(side), topic, [b"x"] * 25, partition=number)
        quick = ("--session-timeout", "6000") if protocol == "classic" else ()
        how = ("--group-protocol", protocol, *quick)
        with GroupMember(side, topic, *how) as one:
            told: Outcome = {"alone": settled([one], 4), "read": until(one.read, lambda count: count >= 100)}
            with GroupMember(side, topic, *how) as two:
                told["two"] = settled([one, two], 4)
                one.leave()
                told["left"] = settled([two], 4)
        return told

    assert sides.alike(script) == {"alone": [4], "read": 100, "two": [2, 2], "left": [4]}


def test_topic_tool(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = side.name("t")
        make = ("--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=86400000")
        told: Outcome = {"create": done(side, java.TOPICS, *make).lines}
        told["again"] = failure(run(side, java.TOPICS, *make))
        told["grow"] = done(side, java.TOPICS, "--alter", "--topic", topic, "--partitions", "3").lines
        told["listed"] = topic in done(side, java.TOPICS, "--list").lines
        described = done(side, java.TOPICS, "--describe", "--topic", topic).lines
        told["described"] = [CHANCE.sub("", line) for line in described]
        told["delete"] = done(side, java.TOPICS, "--delete", "--topic", topic).lines
        told["unknown"] = run(side, java.TOPICS, "--describe", "--topic", side.name("nothing")).status
        return told

    told = sides.alike(script)
    assert told["create"][-1] == "Created topic topic_tool-t."
    assert len(told["described"]) == 4


def test_settings_tool(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        entity = ("--entity-type", "topics", "--entity-name", topic)
        change = ("--alter", *entity, "--add-config", "max.message.bytes=5000,retention.ms=60000")
        told: Outcome = {"alter": done(side, java.CONFIGS, *change).lines}
        told["described"] = done(side, java.CONFIGS, "--describe", *entity).lines
        told["delete"] = done(side, java.CONFIGS, "--alter", *entity, "--delete-config", "retention.ms").lines
        told["left"] = done(side, java.CONFIGS, "--describe", *entity).lines
        told["unknown"] = failure(run(side, java.CONFIGS, "--alter", *entity, "--add-config", "no.such=1"))
        nodes = done(side, java.CONFIGS, "--describe", "--entity-type", "brokers", "--entity-name", "1", "--all")
        told["of the broker"] = nodes.lines[0]
        return told

    told = sides.alike(script)
    assert any("max.message.bytes=5000" in line for line in told["described"])


def test_group_tool(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic, group = create(side, "t", 2), side.name("group")
        send(producer(side), topic, [{"value": b"%d" % n, "timestamp": TIME_MS + n} for n in range(10)], partition=0)
        with_group = ("--group", group)
        reset = ("--reset-offsets", *with_group, "--topic", topic, "--execute")
        told: Outcome = {"reset": done(side, java.GROUPS, *reset, "--to-offset", "4").words()}
        told["listed"] = group in done(side, java.GROUPS, "--list").lines
        told["described"] = done(side, java.GROUPS, "--describe", *with_group).words()
        told["state"] = [
            [re.sub(r":\d+$", ":PORT", word) for word in words]
            for words in done(side, java.GROUPS, "--describe", *with_group, "--state").words()
        ]
        told["shifted"] = done(side, java.GROUPS, *reset, "--shift-by", "-1").words()
        told["by time"] = done(side, java.GROUPS, *reset, "--to-datetime", "2023-11-14T22:13:20.005").words()
        told["deleted offsets"] = done(side, java.GROUPS, "--delete-offsets", *with_group, "--topic", topic).words()
        told["deleted"] = done(side, java.GROUPS, "--delete", *with_group).lines
        told["deleted twice"] = failure(run(side, java.GROUPS, "--delete", *with_group))
        return told

    told = sides.alike(script)
    assert ["group_tool-group", "group_tool-t", "0", "4", "10", "6", "-", "-", "-"] in told["described"]


def test_places_records_and_log_folders(sides: Sides, tmp_path: Path) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 2)
        send(producer(side), topic, [{"value": b"x", "timestamp": TIME_MS + 1000 * n} for n in range(8)], partition=0)
        told: Outcome = {
            time: done(side, java.OFFSETS, "--topic", topic, "--time", time).words()
            for time in ("earliest", "latest", "max-timestamp", str(TIME_MS + 2500))
        }
        place = {"partitions": [{"topic": topic, "partition": 0, "offset": 3}], "version": 1}
        file = tmp_path / f"{side.label}.json"
        file.write_text(json.dumps(place))
        told["deleted"] = done(side, java.DELETE_RECORDS, "--offset-json-file", str(file)).lines
        told["then"] = done(side, java.OFFSETS, "--topic", topic, "--time", "earliest").words()
        folders = json.loads(done(side, java.LOG_FOLDERS, "--describe", "--topic-list", topic).lines[-1])
        (folder,) = folders["brokers"][0]["logDirs"]
        told["folders"] = [sorted(each["partition"] for each in folder["partitions"]), folder["error"]]
        return told

    told = sides.alike(script)
    assert told["earliest"] == [[f"places_records_and_log_folders-t:{number}:0"] for number in range(2)]
    assert told["then"][0] == ["places_records_and_log_folders-t:0:3"]


def test_tools_that_look_at_the_whole(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        versions = done(side, java.VERSIONS).lines
        group = done(side, java.ALL_GROUPS, "--list").words()
        features = done(side, java.FEATURES, "describe").lines
        return {
            "versions": {
                name: newest
                for line in versions
                for name, newest in re.findall(r"(\w+)\(\d+\): .*\[usable: (\d+)\]", line)
            },
            "unusable": ", ".join(
                sorted(name for line in versions for name in re.findall(r"(\w+)\(\d+\): UNSUPPORTED", line))
            ),
            "heading": group[0] if group else None,
            "features": {line.split()[1].replace(".", "-"): line.split()[-3] for line in features},
        }

    told = sides.alike(script)
    assert told["versions"]["Produce"] == "13"


def test_transaction_tool(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        source = producer(side, transactional_id=side.name("tx"))
        source.init_transactions(60)
        source.begin_transaction()
        send(source, topic, [b"a"])

        def words(*arguments: str) -> list[list[str]]:
            return [line.split() for line in done(side, java.TRANSACTIONS, *arguments).lines if line.strip()]

        described = words("describe", "--transactional-id", side.name("tx"))
        producers = words("describe-producers", "--topic", topic, "--partition", "0")
        told: Outcome = {
            "described": dict(zip(described[0], described[1], strict=False)),
            "producers": dict(zip(producers[0], producers[1], strict=False)),
        }
        for found, chance in (
            (told["described"], ("ProducerId", "CurrentTransactionStartTimeMs", "TransactionDurationMs")),
            (told["producers"], ("ProducerId", "LastTimestamp")),
        ):
            for name in chance:
                found.pop(name)
        told["hanging"] = len(words("find-hanging", "--broker-id", "1"))
        source.commit_transaction(60)
        told["read"] = values(read(side, topic, isolation_level="read_committed"))
        return told

    told = sides.alike(script)
    assert told["described"]["TransactionState"] == "Ongoing"
    assert told["read"] == ["a"]
