"""Writes the parts of the docs that are printed from the code; with --check only says which of them differ."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from penstock import config
from penstock.broker.launch import GROUP_ROWS
from penstock.broker.settings import BROKER_TABLE, TOPIC_TABLE, table

ROOT = Path(__file__).resolve().parent.parent
OPTIONS_INTRODUCTION = """\
# Options

Printed from the option table by `make docs`; do not edit.

Every option has one name of Penstock's own. The names that Kafka, librdkafka, Pulsar and RocketMQ have for it are taken
too, with their values converted where a note says so; a dotted name may be written with underscores (`linger_ms`).
`acks` has one name everywhere. Penstock's own name is never converted: `compression_level` -1 is a level.

- **Text** from the environment, a TOML file or a command line is read as the option's type.
- **Sizes** are bytes, or text with a unit: `256 KiB` is 262,144 bytes, `1 MB` is 1,000,000.
- **Times** are milliseconds, fractions too, or text with a unit: `0.5 ms`, `30 s`, `2 min`.
- **An unknown name** is an error that tells the nearest known one. So is an option given twice under two names, a value
  outside of what the option takes, and a combination that cannot work; the last tells what to change.

`BatchPolicy` and `BatchIo` leave out the prefixes: `BatchPolicy(bytes_max=..., delay_ms=..., order=...)` holds
`batch_bytes_max`, `batch_delay_ms` and `property_order`, and `BatchIo(delay_ms, bytes_max)` holds `io_delay_ms` and
`io_bytes_max`.
"""


BROKER_INTRODUCTION = """\
# Settings of the embedded broker

Printed from the tables by `make docs`; do not edit. How settings are given, and which of several holds:
[broker.md](broker.md).

Sizes are bytes, or text with a unit: `256 KiB`, `1 MB`. Times end in `_ms` and are whole milliseconds. Where `none` is
taken, it stands for no limit.
"""


def print_broker_settings() -> str:
    """The page of all settings of a broker."""
    sections = (
        ("Of the broker, from its start to its end", BROKER_TABLE),
        ("Of topics", TOPIC_TABLE),
        ("Of all groups, from the broker's start to its end", GROUP_ROWS),
    )
    return BROKER_INTRODUCTION + "".join(f"\n## {title}\n\n{table(rows)}\n" for title, rows in sections)


def print_options() -> str:
    """The page of all options."""
    return f"{OPTIONS_INTRODUCTION}\n{config.print_docs()}"


PAGES: dict[str, Callable[[], str]] = {
    "docs/options.md": print_options,
    "docs/broker-settings.md": print_broker_settings,
}


def write(root: Path) -> None:
    """Write every page below `root`."""
    for name, print_page in PAGES.items():
        page = root / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(print_page(), encoding="utf-8")


def differing(root: Path) -> list[str]:
    """The pages below `root` that are missing or not as printed now."""
    return [
        name
        for name, print_page in PAGES.items()
        if not (root / name).is_file() or (root / name).read_text(encoding="utf-8") != print_page()
    ]


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when a page differs")
    if not parser.parse_args(arguments).check:
        write(root)
        return 0
    names = differing(root)
    for name in names:
        print(f"docs: {name} differs from what the code prints; `make docs` writes it anew", file=sys.stderr)
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
