"""How a Java program of ours is run: memory and compiler by profile, its log, its command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LOG4J = """status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %m (%c{1})%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""
# Loopback only means IPv4 here; no performance files, since a killed Java leaves them in the temporary folder.
COMMON_FLAGS = ("-XX:+UseSerialGC", "-XX:-UsePerfData", "-Djava.net.preferIPv4Stack=true", "-Djava.awt.headless=true")


@dataclass(frozen=True, slots=True)
class Profile:
    """Memory and compiler of a Java program."""

    name: str
    flags: tuple[str, ...]


# The quick compiler alone starts sooner and eats less of the tests' two cores; figures taken with it mean nothing.
FUNCTIONAL = Profile("functional", ("-Xms64m", "-Xmx256m", "-XX:TieredStopAtLevel=1"))
BENCHMARK = Profile("benchmark", ("-Xms256m", "-Xmx768m"))
PEER = Profile("peer", ("-Xms256m", "-Xmx1g"))


def command(java: Path, profile: Profile, jars: Sequence[Path], log4j: Path, *arguments: str) -> list[str]:
    """The command line that runs a main class of these jars."""
    flags = [*COMMON_FLAGS, *profile.flags, f"-Dlog4j2.configurationFile=file:{log4j}"]
    return [str(java), *flags, "-cp", ":".join(map(str, jars)), *arguments]
