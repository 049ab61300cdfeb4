"""kcat, on a librdkafka of some years ago: lists, produces, consumes, queries, joins a group."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from brokers import kcat
from brokers.errors import BrokerUnavailableError
from tests.compat.confluent import TIME_MS, create, producer, read, send, shown, stored_codecs, values
from tests.compat.sides import LIMIT_S, Outcome, Side, Sides

FORMAT = r"%p %o %k %S:%s %h\n"


@pytest.fixture(scope="session", autouse=True)
def found() -> kcat.Kcat:
    try:
        return kcat.find()
    except BrokerUnavailableError as error:
        if os.environ.get("PENSTOCK_REQUIRE_ALL"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


def run(side: Side, *arguments: str, given: bytes = b"") -> str:
    """What kcat prints; its status must be 0."""
    found = kcat.find()
    done = subprocess.run(
        [found.command, "-b", side.bootstrap, *arguments],
        input=given,
        capture_output=True,
        timeout=LIMIT_S,
        env=dict(found.environment),
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode("utf-8", "backslashreplace")


def test_kcat_lists(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 3)
        told = json.loads(run(side, "-L", "-J", "-t", topic))
        told["brokers"] = [each["id"] for each in told["brokers"]]
        del told["originating_broker"], told["query"]
        return dict(told)

    told = sides.alike(script)
    assert [part["leader"] for part in told["topics"][0]["partitions"]] == [1, 1, 1]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kcat_produces(sides: Sides, codec: str) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        lines = "".join(f"key-{n}:value {n} {'x' * 100}\n" for n in range(50)) + "tombstone:\n"
        arguments = ("-P", "-t", topic, "-z", codec, "-K", ":", "-Z", "-H", "a=1", "-H", "b=2", "-X", "linger.ms=200")
        run(side, *arguments, given=lines.encode())
        found = [shown(message) for message in read(side, topic)]
        for each in found:
            each["time"] = each["time"][0]
        return {"codecs": sorted(stored_codecs(side, topic)), "read": found}

    told = sides.alike(script)
    assert told["codecs"] == [codec]
    assert (len(told["read"]), told["read"][50]["value"]) == (51, None)


PLACES = {"beginning": 40, "end": 0, "17": 23, "-5": 5, f"s@{TIME_MS + 30_000}": 10, f"s@{TIME_MS + 99_000}": 0}


@pytest.mark.parametrize("place", PLACES)
def test_kcat_consumes_from(sides: Sides, place: str) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        source = producer(side, linger_ms=0, batch_num_messages=10)
        send(source, topic, [{"value": b"%d" % n, "key": b"k", "timestamp": TIME_MS + 1000 * n} for n in range(40)])
        return {"read": run(side, "-C", "-t", topic, "-o", place, "-e", "-q", "-f", FORMAT).splitlines()}

    assert len(sides.alike(script)["read"]) == PLACES[place]


def test_kcat_queries_times(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 2)
        send(producer(side), topic, [{"value": b"x", "timestamp": TIME_MS + 1000 * n} for n in range(40)], partition=0)
        asked = [arg for time_ms in (0, TIME_MS + 20_500) for arg in ("-t", f"{topic}:0:{time_ms}")][:2]
        return {
            "by time": run(side, "-Q", *asked).splitlines(),
            "end": run(side, "-Q", "-t", f"{topic}:0:-1").splitlines(),
            "start": run(side, "-Q", "-t", f"{topic}:0:-2").splitlines(),
            "empty": run(side, "-Q", "-t", f"{topic}:1:-1").splitlines(),
        }

    told = sides.alike(script)
    assert told["end"] == ["kcat_queries_times-t [0] offset 40"]


def test_kcat_joins_a_group(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t", 2)
        for number in range(2):
            send(producer(side), topic, [b"%d-%d" % (number, n) for n in range(10)], partition=number)
        group = ("-G", side.name("group"), topic)
        settings = ("-X", "auto.offset.reset=earliest", "-q")
        first = run(side, *settings, "-c", "15", *group).splitlines()
        rest = run(side, *settings, "-c", "5", *group).splitlines()
        return {"first": len(first), "all": sorted(first + rest)}

    told = sides.alike(script)
    assert told["all"] == sorted(f"{number}-{n}" for number in range(2) for n in range(10))


def test_kcat_has_transactions(sides: Sides) -> None:
    def script(side: Side) -> Outcome:
        topic = create(side, "t")
        name = ("-X", f"transactional.id={side.name('tx')}")
        run(side, "-P", "-t", topic, *name, given=b"one\ntwo\n")
        run(side, "-P", "-t", topic, *name, given=b"three\n")
        return {"read": values(read(side, topic, isolation_level="read_committed"))}

    assert sides.alike(script) == {"read": ["one", "two", "three"]}
