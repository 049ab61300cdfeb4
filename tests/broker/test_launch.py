from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from penstock.broker.launch import Address, join_host, read_settings, remove_address, split_setting
from penstock.errors import ConfigError, UnknownOptionError


def test_settings_of_broker_topics_and_groups_are_told_apart(tmp_path: Path) -> None:
    given = {"fsync": "always", "partitions_default": "4", "retention_ms": 1000, "group_members_max": "5"}
    settings, groups = read_settings(tmp_path, given)
    assert groups.members_max == 5
    assert (settings.folder, settings.fsync, settings.partitions_default) == (tmp_path, "always", 4)
    assert settings.topics == {"retention_ms": 1000}


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("retention_ms=none", "retention_ms", None),
        ("retention_bytes = 10 MiB", "retention_bytes", 10 << 20),
        ("keep_unread=yes", "keep_unread", True),
        ("entry_filters=property(region = eu)", "entry_filters", "property(region = eu)"),
    ],
)
def test_settings_may_be_text(tmp_path: Path, text: str, name: str, value: object) -> None:
    settings, _ = read_settings(tmp_path, dict([split_setting(text)]))
    assert settings.topics == {name: value}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"fsnyc": "group"}, "there is no setting 'fsnyc'; the nearest is fsync"),
        ({"zzz": 1}, "there is no setting 'zzz'"),
        ({"fsync": "sometimes"}, "fsync takes"),
        ({"fsync": None}, "fsync takes"),
        ({"segment_bytes": "none"}, "segment_bytes takes"),
        ({"partitions_default": 0}, "partitions_default takes"),
        ({"group_members_max": 0}, "members_max takes"),
        ({"members_max": 1}, "there is no setting 'members_max'; the nearest is group_members_max"),
    ],
)
def test_wrong_settings_are_told(tmp_path: Path, given: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings(tmp_path, given)
    assert told in str(caught.value)


def test_a_data_folder_is_needed() -> None:
    with pytest.raises(ConfigError, match="a data folder is needed"):
        read_settings(Path(), {})


def test_an_unknown_setting_has_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(UnknownOptionError):
        read_settings(tmp_path, {"folder": "/"})


def test_a_setting_is_a_name_and_a_value() -> None:
    assert split_setting("a = b = c") == ("a", "b = c")
    with pytest.raises(ConfigError, match="expected name=value, found 'abc'"):
        split_setting("abc")


def test_where_a_broker_listens_is_written_whole_and_removed(tmp_path: Path) -> None:
    address = Address(("::1", 9092), ("127.0.0.1", 80))
    path = tmp_path / "address.json"
    address.write(path)
    assert json.loads(path.read_text()) == {"pid": os.getpid(), "kafka": "[::1]:9092", "http": "127.0.0.1:80"}
    assert list(tmp_path.iterdir()) == [path]
    remove_address(path)
    remove_address(path)
    assert list(tmp_path.iterdir()) == []
    assert address.url == "kafka://[::1]:9092"
    assert join_host(("host", 1)) == "host:1"


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
        Address(("127.0.0.1", 1), None).write(tmp_path / "no" / "such" / "folder")
