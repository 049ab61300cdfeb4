"""Bars, tables, and the sections of `bench/RESULTS.md`.

A benchmark rewrites its own section and leaves the others alone; sections stand in the order of their names.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from bench.timing import Ratio

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"

INTRODUCTION = """\
# Results

Written by `make bench`, which rewrites the sections of the benchmarks that it ran. Figures are medians of all rounds. A
ratio is the median of the ratios of the single rounds; its spread goes from the smallest of them to the largest.
"""

HEADINGS = ("case", "ours", "beside", "theirs", "ratio", "spread", "bar", "")


@dataclass(frozen=True, slots=True)
class Bar:
    """What a ratio must reach, or stay within."""

    sign: str
    limit: float

    def met(self, ratio: float) -> bool:
        """Whether this ratio is good enough."""
        return {"≥": ratio >= self.limit, "≤": ratio <= self.limit, "<": ratio < self.limit}[self.sign]

    def __str__(self) -> str:
        return f"{self.sign} {self.limit:g}x"


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison; without a peer, a figure that is only told."""

    case: str
    ours: str
    beside: str = ""
    theirs: str = ""
    ratio: Ratio | None = None
    bar: Bar | None = None

    def verdict(self) -> str:
        """Whether the bar was met, where there is one."""
        if self.bar is None or self.ratio is None:
            return ""
        return "met" if self.bar.met(self.ratio.median) else "MISSED"

    def cells(self) -> tuple[str, ...]:
        """The row as the table shows it."""
        ratio = f"{self.ratio.median:.3g}x" if self.ratio else ""
        spread = f"{self.ratio.low:.3g} to {self.ratio.high:.3g}" if self.ratio else ""
        bar = str(self.bar) if self.bar else ""
        return self.case, self.ours, self.beside, self.theirs, ratio, spread, bar, self.verdict()


@dataclass(frozen=True, slots=True)
class Section:
    """What one benchmark found."""

    name: str
    compared: str
    """What was compared, what each side's figure includes, and by which clock."""
    rows: Sequence[Row]
    rounds: int
    packages: Sequence[str] = field(default_factory=tuple)
    """Whose versions matter."""

    def missed(self) -> list[Row]:
        """The rows whose bar was not met."""
        return [row for row in self.rows if row.verdict() == "MISSED"]


def render(section: Section) -> str:
    """A section as Markdown."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *(row.cells() for row in section.rows)]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in rows)
    where = f"{section.rounds} rounds on {machine(section.packages)}."
    return f"## {section.name}\n\n{section.compared.strip()}\n\n{table}\n\n{where}\n"


def machine(packages: Sequence[str]) -> str:
    """The machine and the versions that the figures hold for."""
    versions = [f"{package} {metadata.version(package)}" for package in packages]
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return ", ".join([f"{os.cpu_count()} cores of {platform.machine()}", platform.system(), python, *versions])


def write(section: Section, path: Path = RESULTS) -> None:
    """Put this section into the file, in place of the one of the same name."""
    sections = read(path) | {section.name: render(section)}
    path.write_text(INTRODUCTION + "".join(f"\n{sections[name]}" for name in sorted(sections)))


def read(path: Path) -> dict[str, str]:
    """The sections of the file by name."""
    if not path.exists():
        return {}
    parts = re.split(r"^## (.+)\n", path.read_text(), flags=re.MULTILINE)
    return {name: f"## {name}\n{text.rstrip()}\n" for name, text in zip(parts[1::2], parts[2::2], strict=True)}
