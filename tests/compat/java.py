"""Kafka's own tools on Java, as a user runs them: what they print and how they end."""

from __future__ import annotations

import atexit
import itertools
import json
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from brokers import jars, jvm
from brokers.process import Guarded
from brokers.runtime import find_java
from tests.compat.sides import LIMIT_S, Side, shared_out, until

TOOLS = "org.apache.kafka.tools"
TOPICS = f"{TOOLS}.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
ALL_GROUPS = f"{TOOLS}.GroupsCommand"
CONSOLE_PRODUCER = f"{TOOLS}.ConsoleProducer"
CONSOLE_CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
PRODUCER_PERFORMANCE = f"{TOOLS}.ProducerPerformance"
CONSUMER_PERFORMANCE = f"{TOOLS}.ConsumerPerformance"
VERIFIABLE_CONSUMER = f"{TOOLS}.VerifiableConsumer"
OFFSETS = f"{TOOLS}.GetOffsetShell"
DELETE_RECORDS = f"{TOOLS}.DeleteRecordsCommand"
TRANSACTIONS = f"{TOOLS}.TransactionsCommand"
VERSIONS = f"{TOOLS}.BrokerApiVersionsCommand"
LOG_FOLDERS = f"{TOOLS}.LogDirsCommand"
FEATURES = f"{TOOLS}.FeatureCommand"
STATEFUL = (CONSOLE_CONSUMER,)
"""Tools that count in their classes."""
HOST = Path(__file__).with_name("Tools.java")


@dataclass(frozen=True, slots=True)
class Printed:
    """What a tool printed, and its exit status."""

    status: int
    lines: list[str]
    errors: str

    def words(self) -> list[list[str]]:
        """The lines that are not empty, cut at blanks, in an order that does not depend on a hash."""
        return sorted(line.split() for line in self.lines if line.strip())


class Tools:
    """One Java in which tools run one after another; where Java has no compiler, each tool has its own."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-java-")
        self._numbers = itertools.count()
        self._log = (Path(self._folder.name) / "log").open("wb")
        self._host = subprocess.Popen(
            [*command(), str(HOST)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )
        self._alone = self._answer() != "ready"

    def close(self) -> None:
        self._host.kill()
        self._host.communicate()
        self._log.close()
        self._folder.cleanup()

    def run(self, tool: str, arguments: Sequence[str], given: str) -> Printed:
        """Run a tool to its end."""
        if self._alone:
            return self._run_alone(tool, arguments, given)
        folder = Path(self._folder.name) / str(next(self._numbers))
        folder.mkdir()
        name = f"fresh:{tool}" if tool in STATEFUL else tool
        (folder / "arguments").write_text("\0".join((name, *arguments)))
        (folder / "input").write_text(given)
        assert self._host.stdin is not None
        self._host.stdin.write(f"{folder}\n".encode())
        self._host.stdin.flush()
        status = int(self._answer())
        return Printed(status, (folder / "output").read_text().splitlines(), (folder / "errors").read_text())

    def _answer(self) -> str:
        assert self._host.stdout is not None
        return self._host.stdout.readline().decode().strip()

    def _run_alone(self, tool: str, arguments: Sequence[str], given: str) -> Printed:
        done = subprocess.run(
            [*command(), tool, *arguments], input=given.encode(), capture_output=True, timeout=2 * LIMIT_S, check=False
        )
        return Printed(done.returncode, done.stdout.decode().splitlines(), done.stderr.decode())


@cache
def command() -> list[str]:
    """How a tool is started."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    log4j = folder / "log4j2.properties"
    log4j.write_text(jvm.LOG4J.replace("= info", "= error"))
    files = jars.ensure("kafka", lambda _: None)
    java, *rest = jvm.command(find_java(), jvm.FUNCTIONAL, files, log4j)
    return [java, "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8", *rest]


def failure(printed: Printed) -> str:
    """The first error that Kafka's library names."""
    found = re.search(r"org\.apache\.kafka\.common\.errors\.(\w+)", printed.errors + "\n".join(printed.lines))
    return found[1] if found else f"status {printed.status}"


class GroupMember:
    """Kafka's verifiable consumer: a member of a group that tells what it holds."""

    def __init__(self, side: Side, topic: str, *arguments: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-java-")
        self._log = Path(self._folder.name) / "log"
        group = ("--topic", topic, "--group-id", side.name("group"))
        start = [*command(), VERIFIABLE_CONSUMER, "--bootstrap-server", side.bootstrap, *group, *arguments]
        self._process = Guarded.start(start, self._log)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
        self._folder.cleanup()

    def leave(self) -> None:
        """End it as an operator would: it leaves its group."""
        self._process.signal(signal.SIGTERM)
        if self._process.wait(LIMIT_S) is None:
            self._process.kill()

    def events(self) -> list[dict[str, Any]]:
        """All that it told so far."""
        lines = self._log.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def held(self) -> list[int]:
        """The partitions that it holds now."""
        mine: set[int] = set()
        for event in self.events():
            if event["name"] == "partitions_assigned":
                mine |= {each["partition"] for each in event["partitions"]}
            elif event["name"] in ("partitions_revoked", "partitions_lost"):
                mine -= {each["partition"] for each in event["partitions"]}
        return sorted(mine)

    def read(self) -> int:
        """How many messages it has read."""
        return sum(event["count"] for event in self.events() if event["name"] == "records_consumed")


def settled(members: list[GroupMember], partitions: int) -> list[int]:
    """How many partitions each holds, once they share all."""

    held = until(lambda: [member.held() for member in members], lambda parts: shared_out(parts, partitions))
    return sorted(map(len, held))
