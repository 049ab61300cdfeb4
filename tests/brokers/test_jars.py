"""The locks are whole, the cache is trusted only as far as its checksums, and nothing is fetched that is there."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from brokers import jars
from brokers.cache import cache_root
from brokers.errors import BrokerError, BrokerUnavailableError
from brokers.jars import Jar
from brokers.runtime import ROOT

NAMES = sorted(path.stem for path in jars.LOCKS.glob("*.lock"))


def content(jar: Jar) -> bytes:
    return f"bytes of {jar.coordinates}".encode()


class Tool:
    """Brings made-up jars, or for the coordinates in `wrong` other bytes, and counts its calls."""

    def __init__(self, wrong: Sequence[str] = (), missing: Sequence[str] = ()) -> None:
        self.calls = 0
        self._wrong, self._missing = wrong, missing

    def __call__(self, name: str, wanted: Sequence[Jar], work: Path, say: jars.Say) -> None:
        self.calls += 1
        (work / "jars").mkdir(parents=True, exist_ok=True)
        for jar in wanted:
            if jar.coordinates not in self._missing:
                data = b"tampered" if jar.coordinates in self._wrong else content(jar)
                (work / "jars" / jar.name).write_bytes(data)


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Jar]:
    """A lock of three made-up jars, and an empty cache."""
    plain = [Jar("g", "a", "1", "", ""), Jar("g", "a", "1", "linux", ""), Jar("h", "a", "1", "", "")]
    lines = [f"{hashlib.sha256(content(jar)).hexdigest()}  {jar.coordinates}" for jar in plain]
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "some.lock").write_text("# a comment\n" + "\n".join(lines) + "\n")
    monkeypatch.setattr(jars, "LOCKS", tmp_path / "locks")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return jars.read_lock(tmp_path / "locks" / "some.lock")


def quiet(_: str) -> None:
    pass


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_names_each_jar_once_with_its_checksum_and_all_roots(name: str) -> None:
    locked = jars.read_lock(jars.lock_path(name))
    assert all(re.fullmatch(r"[0-9a-f]{64}", jar.sha256) for jar in locked)
    assert len({jar.name for jar in locked}) == len(locked)
    roots = tomllib.loads((jars.HERE / "sets.toml").read_text())[name]["roots"]
    assert set(roots) <= {jar.coordinates for jar in locked}


def test_every_set_has_its_lock() -> None:
    assert sorted(tomllib.loads((jars.HERE / "sets.toml").read_text())) == NAMES


def test_no_lock_names_a_host() -> None:
    for path in [jars.HERE / "sets.toml", *jars.LOCKS.iterdir(), *jars.HERE.glob("*.py")]:
        assert not re.search(r"https?://(?!ant\.apache\.org/ivy/maven\")", path.read_text()), path


def test_jars_are_fetched_once_and_then_found(made_up: list[Jar]) -> None:
    tool = Tool()
    first = jars.ensure("some", quiet, tool)
    assert [path.read_bytes() for path in first] == [content(jar) for jar in made_up]
    assert jars.ensure("some", quiet, tool) == first
    assert tool.calls == 1
    assert [path.name for path in first] == ["g.a-1.jar", "g.a-1-linux.jar", "h.a-1.jar"]


def test_a_wrong_checksum_is_refused_and_nothing_of_it_stays(made_up: list[Jar]) -> None:
    bad = made_up[1]
    found = hashlib.sha256(b"tampered").hexdigest()
    line = f"g:a:1:linux is refused: its sha256 must be {bad.sha256} but is {found}"
    with pytest.raises(BrokerError, match=line) as error:
        jars.ensure("some", quiet, Tool(wrong=["g:a:1:linux"]))
    assert not isinstance(error.value, BrokerUnavailableError)
    assert not list(cache_root().rglob("*.jar"))
    assert jars.ensure("some", quiet, Tool())


def test_a_jar_that_did_not_arrive_is_named(made_up: list[Jar]) -> None:
    with pytest.raises(BrokerUnavailableError, match="h:a:1 did not arrive"):
        jars.ensure("some", quiet, Tool(missing=["h:a:1"]))


@pytest.mark.parametrize("harm", [lambda path: path.unlink(), lambda path: path.write_bytes(b"rotten")])
def test_a_cache_that_was_harmed_is_fetched_anew(made_up: list[Jar], harm: object) -> None:
    tool = Tool()
    files = jars.ensure("some", quiet, tool)
    assert callable(harm)
    harm(files[2])
    assert [path.read_bytes() for path in jars.ensure("some", quiet, tool)] == [content(jar) for jar in made_up]
    assert tool.calls == 2


def test_two_at_the_same_time_fetch_once(made_up: list[Jar]) -> None:
    entered, leave, said = threading.Event(), threading.Event(), threading.Event()
    slow, other = Tool(), Tool()

    def hold(name: str, wanted: Sequence[Jar], work: Path, say: jars.Say) -> None:
        entered.set()
        assert leave.wait(30)
        slow(name, wanted, work, say)

    first = threading.Thread(target=jars.ensure, args=("some", quiet, hold))
    first.start()
    assert entered.wait(30)
    second = threading.Thread(target=jars.ensure, args=("some", lambda _: said.set(), other))
    second.start()
    assert said.wait(30), "the second says that it waits"
    leave.set()
    first.join(30)
    second.join(30)
    assert (slow.calls, other.calls) == (1, 0)


def test_a_complete_cache_needs_no_tool_and_no_path(made_up: list[Jar]) -> None:
    jars.ensure("some", quiet, Tool())
    program = (
        "import sys; from pathlib import Path; from brokers import jars; "
        f"jars.LOCKS = Path({str(jars.LOCKS)!r}); "
        "print(len(jars.ensure('some', print)), 'brokers.fetch' in sys.modules)"
    )
    environment = {"PENSTOCK_CACHE": str(cache_root()), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, check=True)
    assert done.stdout == b"3 False\n"


def test_the_cache_follows_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", "/one")
    assert cache_root() == Path("/one")
    monkeypatch.delenv("PENSTOCK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    assert cache_root() == Path("/two/penstock")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/three")
    assert cache_root() == Path("/three/.cache/penstock")


def test_an_unknown_set_is_told_which_there_are() -> None:
    with pytest.raises(BrokerError, match="no set of jars is named 'kaffka'; known: kafka, spark-kafka"):
        jars.lock_path("kaffka")


def test_a_cache_without_room_is_one_line(made_up: list[Jar], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "DISK_BYTES_MIN", 1 << 60)
    with pytest.raises(BrokerUnavailableError, match=r"need .* MB free in .*; make room there or point PENSTOCK_CACHE"):
        jars.ensure("some", quiet, Tool())


def test_a_cache_that_cannot_be_written_is_one_line(made_up: list[Jar], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(BrokerUnavailableError, match=r"cannot be kept in .*; make room there or point PENSTOCK_CACHE"):
        jars.ensure("some", quiet, Tool())
    assert os.environ["PENSTOCK_CACHE"] == str(tmp_path / "cache")
