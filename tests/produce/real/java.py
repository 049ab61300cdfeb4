"""Kafka's own Java producer, as far as it can be told what to send: lines of text with a key each."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from brokers import jars, jvm
from brokers.runtime import find_java

LIMIT_S = 120.0
SEPARATOR = "\t"


def send_keyed(bootstrap: str, topic: str, messages: Sequence[tuple[str, str]], folder: Path) -> None:
    """Have the Java client send these keys and values, in this order."""
    log4j = folder / "log4j2.properties"
    log4j.write_text(jvm.LOG4J.replace("= info", "= error"))
    arguments = [
        *("org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", bootstrap, "--topic", topic),
        *("--reader-property", "parse.key=true", "--reader-property", f"key.separator={SEPARATOR}"),
    ]
    command = jvm.command(find_java(), jvm.FUNCTIONAL, jars.ensure("kafka", lambda _: None), log4j, *arguments)
    lines = "".join(f"{key}{SEPARATOR}{value}\n" for key, value in messages)
    done = subprocess.run(
        [*command[:1], "-Dfile.encoding=UTF-8", *command[1:]],
        input=lines.encode(),
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
