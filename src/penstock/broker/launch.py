"""Before and after a broker's life: settings out of what was given, and the file that tells where it listens.

The file `address.json` in the data folder is there while a broker runs on it, for whoever knows the folder and not the
port. It may be left behind by a crash, and then tells a process that is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.broker.filters import EntryFilter, FilterFactory, Filters
from penstock.broker.groups.settings import GROUP_TABLE, GroupSettings
from penstock.broker.settings import BROKER_TABLE, TOPIC_TABLE, BrokerSettings, Setting
from penstock.errors import ConfigError, UnknownOptionError

ADDRESS_FILE: Final = "address.json"
KAFKA_PORT: Final = 9092
HTTP_PORT: Final = 9192
NO_LIMIT: Final = "none"

GROUP_PREFIX: Final = "group_"

GROUP_ROWS: Final = tuple(replace(row, name=f"{GROUP_PREFIX}{row.name}") for row in GROUP_TABLE)
"""Settings of all groups, as they are called among others."""
_ROWS: Final[Mapping[str, Setting]] = {row.name: row for row in (*BROKER_TABLE, *TOPIC_TABLE, *GROUP_ROWS)}
_OF_TOPICS: Final = frozenset(row.name for row in TOPIC_TABLE)
_OF_GROUPS: Final = frozenset(row.name for row in GROUP_ROWS)


def read_settings(folder: Path, given: Mapping[str, object]) -> tuple[BrokerSettings, GroupSettings]:
    """A broker's settings and those of its groups, whose names begin with `group_` here.

    Settings of topics hold for topics that have no setting nearer to them. Values may be text, and the text `none`
    stands for no limit. ConfigError names the nearest setting for one that does not exist, and what a setting takes.
    """
    if folder == Path():
        raise ConfigError("a data folder is needed, other than the present one")
    of_broker: dict[str, Any] = {}
    of_topics: dict[str, object] = {}
    of_groups: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _ROWS:
            near = get_close_matches(name, _ROWS, 1)
            hint = f"; the nearest is {near[0]}" if near else ""
            raise UnknownOptionError(f"there is no setting {name!r}{hint}")
        if name in _OF_GROUPS:
            of_groups[name.removeprefix(GROUP_PREFIX)] = value
        else:
            (of_topics if name in _OF_TOPICS else of_broker)[name] = read_value(name, value)
    return BrokerSettings(folder, topics=of_topics, **of_broker), GroupSettings(**of_groups)


def read_value(name: str, value: object) -> object:
    """The value that was given for a setting, where the text `none` may stand for no limit."""
    row = _ROWS.get(name)
    return None if row is not None and row.open and value == NO_LIMIT else value


def check_filters(settings: BrokerSettings, given: Mapping[str, FilterFactory | EntryFilter] | None) -> None:
    """ConfigError when the entry filters that a broker is to start with cannot be had."""
    text = settings.topics.get("entry_filters")
    if text is not None:
        Filters(given=given).check(str(text))


def split_setting(text: str) -> tuple[str, str]:
    """Name and value out of `name=value`."""
    name, sign, value = text.partition("=")
    if not sign:
        raise ConfigError(f"expected name=value, found {text!r}")
    return name.strip(), value.strip()


class Address(NamedTuple):
    """Where a broker listens."""

    kafka: tuple[str, int]
    http: tuple[str, int] | None

    @property
    def url(self) -> str:
        """As `penstock.connect` takes it."""
        return f"kafka://{join_host(self.kafka)}"

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        told = {
            "pid": os.getpid(),
            "kafka": join_host(self.kafka),
            "http": None if self.http is None else join_host(self.http),
        }
        written = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            written.write_text(json.dumps(told) + "\n", encoding="utf-8")
            written.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                written.unlink()
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def remove_address(path: Path) -> None:
    """Remove the file, if it is there."""
    with contextlib.suppress(OSError):
        path.unlink()


def join_host(address: tuple[str, int]) -> str:
    """`host:port`, with IPv6 addresses in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
