"""The commands of `penstock` but for `serve`: what they take, and what they print."""

from __future__ import annotations

import json
import platform
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypedDict

import typer
from rich.console import Console
from rich.table import Table

from penstock import __version__
from penstock.config.options import OPTIONS, Option
from penstock.errors import UnknownOptionError

app = typer.Typer(
    help="You handle messages one at a time; Penstock moves them in batches, all the way.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Format(StrEnum):
    """How a command prints its answer."""

    TABLE = "table"
    JSON = "json"


def _print_version(wanted: bool) -> None:
    if wanted:
        from penstock.wire.kafka.kernel import KERNEL

        typer.echo(f"penstock {__version__} ({KERNEL} kernel, Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def penstock(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Tell the version and which kernel serves.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Options that come before a command."""


@app.command()
def options(
    name: Annotated[str, typer.Argument(help="Only options whose name, or name elsewhere, contains this.")] = "",
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,  # noqa: A002
) -> None:
    """List the options, what they mean, and what they are called in Kafka, Pulsar and RocketMQ."""
    rows = [_option_row(option) for option in OPTIONS if _answers_to(option, name)]
    if not rows:
        raise UnknownOptionError(f"no option's name contains {name!r}; `penstock options` lists them all")
    if format is Format.JSON:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("option", "default", "meaning", "known elsewhere as"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(row["name"], row["default"], row["text"], "\n".join(row["aliases"]))
    Console().print(table, markup=False)


@app.command(add_help_option=False)
def serve() -> None:
    """Run the embedded broker until Ctrl-C or SIGTERM."""
    raise AssertionError("main() sees to it")


@app.command()
def stats(
    url: Annotated[str, typer.Argument(help="The broker's HTTP URL, if not http://127.0.0.1:9192.")] = "",
    topic: Annotated[str, typer.Argument(help="One topic, in place of all.")] = "",
    data: Annotated[Path | None, typer.Option(help="The data folder of a running broker, in place of a URL.")] = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,  # noqa: A002
) -> None:
    """Show what a running broker has stored and what passes it, or the same of one topic."""
    from penstock.cli.stats import fetch, place, show

    told = fetch(*place([each for each in (url, topic) if each], data))
    if format is Format.JSON:
        typer.echo(json.dumps(told, indent=2))
    else:
        show(told, Console())


class OptionRow(TypedDict):
    """One option as it is printed."""

    name: str
    scope: str
    default: str
    takes: str
    text: str
    aliases: list[str]


def _option_row(option: Option) -> OptionRow:
    return OptionRow(
        name=option.name,
        scope=option.scope.value,
        default="none" if option.default is None else option.kind.show(option.default),
        takes=option.kind.allowed,
        text=option.text,
        aliases=[alias.name for alias in option.aliases],
    )


def _answers_to(option: Option, part: str) -> bool:
    return any(part.lower() in name.lower() for name in (option.name, *(alias.name for alias in option.aliases)))
