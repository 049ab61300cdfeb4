"""MirrorMaker's own classes, run by Java, asked many things at once."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.compat.java import command

PROGRAM = Path(__file__).with_name("Mirror.java")
LIMIT_S = 240.0


def ask(questions: Sequence[Sequence[str | int]]) -> list[list[str]]:
    """The words of each answer."""
    lines = "".join("\t".join(map(str, words)) + "\n" for words in questions)
    done = subprocess.run(
        [*command(), str(PROGRAM)], input=lines.encode(), capture_output=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return [line.split("\t") for line in done.stdout.decode().splitlines()]


def in_hex(text: str) -> str:
    return text.encode().hex()
