"""`penstock stats`: what a running broker tells of itself, as tables or as JSON.

Asks the broker's HTTP port. Knows the JSON of `broker/report.py` and nothing else of a broker.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from rich.console import Console
from rich.table import Table

from penstock.errors import BrokerError, ConfigError, PenstockError

DEFAULT_URL: Final = "http://127.0.0.1:9192"
ANSWER_S_MAX: Final = 30.0
NOTHING: Final = "-"
FLOW_COLUMNS: Final = ("in/s", "in B/s", "in batch", "out/s", "out B/s", "out batch")

_UNITS = ("", "k", "M", "G", "T", "P")
_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
_SHOWN_PARTITIONS = 8
THOUSAND: Final = 1000
TEN: Final = 10

Told = Mapping[str, Any]


def place(what: Sequence[str], data: Path | None) -> tuple[str, str | None]:
    """The URL to ask, and the topic, out of what the command line names."""
    urls = [each for each in what if "://" in each]
    topics = [each for each in what if "://" not in each]
    if len(urls) + (data is not None) > 1 or len(topics) > 1:
        raise ConfigError("expected at most one broker, by URL or --data, and one topic")
    url = url_of_folder(data) if data is not None else urls[0] if urls else DEFAULT_URL
    return url, topics[0] if topics else None


def fetch(url: str, topic: str | None) -> dict[str, Any]:
    """What the broker under this URL tells of itself, or of a topic."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
        raise ConfigError(f"{url!r} is not the URL of a broker's HTTP port, such as {DEFAULT_URL}")
    path = "/stats" if topic is None else f"/stats/topics/{quote(topic)}"
    connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=ANSWER_S_MAX)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        told = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise BrokerError(f"no broker answers at {url}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise PenstockError(told.get("error", f"{url}{path} was answered with {answer.status}"))
    if not isinstance(told, dict):
        raise BrokerError(f"what answers at {url} is no broker of Penstock")
    return told


def url_of_folder(folder: Path) -> str:
    """The URL of the broker that runs on a data folder."""
    path = folder / "address.json"
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        address = told["http"]
    except FileNotFoundError:
        raise PenstockError(f"no broker runs on {folder}") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PenstockError(f"{path} cannot be read: {error}") from error
    if address is None:
        raise PenstockError(f"the broker that runs on {folder} has no HTTP port")
    return f"http://{address}"


def show(told: Told, console: Console) -> None:
    """Print what was told as tables."""
    if "broker" in told:
        _show_broker(told, console)
    else:
        _show_topic(told, console)


def _show_broker(told: Told, console: Console) -> None:
    broker = told["broker"]
    console.print(
        f"broker {broker['node_id']} on {broker['data']}, up {_duration(broker['uptime_s'])}, fsync {broker['fsync']}, "
        f"{broker['connections']} connections, {broker['open_partitions']} of {broker['partitions']} partitions open",
        highlight=False,
    )
    topics = _table("topic", "parts", "messages", "size", *FLOW_COLUMNS, "backlog")
    for topic in told["topics"]:
        topics.add_row(topic["topic"], *_topic_cells(topic))
    _print(console, topics, "no topics yet")
    if told["groups"]:
        groups = _table(
            "group", "protocol", "state", "members", "backlog", "topics", words=("protocol", "state", "topics")
        )
        for group in told["groups"]:
            cells = (group["protocol"], group["state"], str(group["members"]), _count(group["backlog_messages"]))
            groups.add_row(group["name"], *cells, ", ".join(group["topics"]))
        _print(console, groups)
    if told["filters"]:
        filters = _table("filter", "accepted", "rejected", "rescheduled", "failed", "rejected messages")
        for each in told["filters"]:
            names = ("accepted", "rejected", "rescheduled", "failed", "rejected_messages")
            filters.add_row(each["filter"], *(_count(each[name]) for name in names))
        _print(console, filters)


def _topic_cells(topic: Told) -> Sequence[str]:
    came, went = topic["published"], topic["delivered"]
    backlog = max((reader["backlog"]["messages"] for reader in topic["readers"]), default=None)
    return (
        str(topic["partitions"]),
        _count(topic["messages"]),
        _size(topic["bytes"]),
        *_flow_cells(came, went),
        _count(backlog),
    )


def _show_topic(topic: Told, console: Console) -> None:
    filters = f", entry filters {topic['entry_filters']}" if topic["entry_filters"] else ""
    console.print(
        f"topic {topic['topic']}: {_count(topic['messages'])} messages, {_size(topic['bytes'])} in "
        f"{topic['open_partitions']} of {topic['partitions']} partitions{filters}",
        highlight=False,
        markup=False,
    )
    console.print(f"{_passed('published', topic)}, {_passed('delivered', topic)}", highlight=False)
    partitions = _table("partition", "start", "end", "size", *FLOW_COLUMNS, "backlog")
    for each in topic["each_partition"]:
        partitions.add_row(str(each["partition"]), *_partition_cells(each))
    _print(console, partitions)
    producers = _table("producer", "conns", "in/s", "in B/s", "messages", "batch", "msg size", "partitions")
    for each in topic["producers"]:
        producers.add_row(each["name"], str(each["connections"]), *_producer_cells(each))
    _print(console, producers, "no producers since the broker started")
    readers = _table("reader", "kind", "backlog", "entries", "size", "partitions", words=("kind",))
    for each in topic["readers"]:
        backlog = each["backlog"]
        cells = (_count(backlog["messages"]), _count(backlog["entries"]), _size(backlog["bytes"]))
        readers.add_row(each["name"], each["kind"], *cells, _partitions(each["partitions"]))
    _print(console, readers, "no groups or cursors")
    _show_filters(topic["filters"], console)


def _partition_cells(each: Told) -> Sequence[str]:
    came, went = each["published"], each["delivered"]
    backlog = max((reader["backlog"]["messages"] for reader in each["readers"]), default=None)
    return (
        NOTHING if each["start"] is None else str(each["start"]),
        NOTHING if each["end"] is None else str(each["end"]),
        _size(each["bytes"]),
        *_flow_cells(came, went),
        _count(backlog),
    )


def _passed(way: str, told: Told) -> str:
    """What passed since the broker started."""
    flow = told[way]
    return f"{way} {_count(flow['messages'])} messages in {_count(flow['entries'])} entries ({_size(flow['bytes'])})"


def _flow_cells(came: Told, went: Told) -> Sequence[str]:
    """Messages and bytes per second, and how many messages entries have: of what came and of what left."""
    return (
        _count(came["messages_per_s"]),
        _size(came["bytes_per_s"]),
        _count(came["average_batch_messages"]),
        _count(went["messages_per_s"]),
        _size(went["bytes_per_s"]),
        _count(went["average_batch_messages"]),
    )


def _producer_cells(each: Told) -> Sequence[str]:
    came = each["published"]
    return (
        _count(came["messages_per_s"]),
        _size(came["bytes_per_s"]),
        _count(came["messages"]),
        _count(came["average_batch_messages"]),
        _size(came["average_message_bytes"]),
        _partitions(each["partitions"]),
    )


def _show_filters(counts: Told, console: Console) -> None:
    judged = sum(counts[name] for name in ("accepted", "rejected", "rescheduled"))
    if judged:
        console.print()
        console.print(
            f"filters accepted {_count(counts['accepted'])} entries, rejected {_count(counts['rejected'])} "
            f"({_count(counts['rejected_messages'])} messages), rescheduled {_count(counts['rescheduled'])}, "
            f"failed {_count(counts['failed'])} times",
            highlight=False,
        )


def _table(first: str, *columns: str, words: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, overflow="fold")
    for column in columns:
        is_words = column in (*words, "partitions")
        table.add_column(column, overflow="fold", justify="left" if is_words else "right", no_wrap=not is_words)
    return table


def _print(console: Console, table: Table, otherwise: str = "") -> None:
    console.print()
    if table.row_count:
        console.print(table, markup=False)
    elif otherwise:
        console.print(otherwise)


def _count(number: float | None) -> str:
    """A number, short."""
    return NOTHING if number is None else _scaled(number, _UNITS, "")


def _size(number: float | None) -> str:
    """So many bytes, short."""
    return NOTHING if number is None else _scaled(number, _BYTES, " ")


def _scaled(number: float, units: Sequence[str], space: str) -> str:
    power = 0
    while number >= THOUSAND and power + 1 < len(units):
        number /= THOUSAND
        power += 1
    digits = f"{number:.1f}" if (power or number != int(number)) and number < THOUSAND / TEN else f"{number:.0f}"
    return f"{digits}{space if units[power] else ''}{units[power]}"


def _duration(seconds: float) -> str:
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86_400
    for amount, unit in ((days, "d"), (hours, "h"), (minutes, "min")):
        if amount >= 1:
            return f"{amount:.1f} {unit}"
    return f"{seconds:.0f} s"


def _partitions(numbers: Sequence[int]) -> str:
    """Partition numbers, runs of them as one."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:_SHOWN_PARTITIONS]]
    return ", ".join(shown) + (", ..." if len(runs) > _SHOWN_PARTITIONS else "")
