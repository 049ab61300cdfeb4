"""Fetching asks Maven or Ivy for exactly the locked jars, tries again, and tells in one line why it gave up."""

from __future__ import annotations

import os
import stat
import sys
import tarfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from brokers import fetch, lock
from brokers.errors import BrokerError, BrokerUnavailableError
from brokers.jars import Jar
from brokers.runtime import find_java

JARS = [
    Jar("g.h", "a", "1", "", "0" * 64),
    Jar("g.h", "a", "1", "linux", "1" * 64),
    Jar("g", "b", "2-RC&1", "", "2" * 64),
]
FAKE_JAVA = """
print('openjdk version "17.0.1"')
if "-jar" in sys.argv:
    (work / "asked").write_text(" ".join(sys.argv))
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH on which there is something like a Java and nothing else, and no waiting between attempts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    write_tool(folder / "java", FAKE_JAVA)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(fetch, "RETRY_DELAY_S", 0)
    monkeypatch.setattr(fetch, "PROGRESS_EVERY_S", 0.05)
    return folder


def write_tool(path: Path, program: str) -> None:
    path.write_text(f"#!{sys.executable}\nimport sys, pathlib, time\nwork = pathlib.Path.cwd()\n{program}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_a_pom_names_every_jar_and_excludes_what_it_needs() -> None:
    project = ElementTree.fromstring(fetch.locked_pom(JARS))
    named = [[field.text for field in entry[:-1]] for entry in project.iter("dependency")]
    assert named == [["g.h", "a", "1"], ["g.h", "a", "1", "linux"], ["g", "b", "2-RC&1"]]
    assert [entry.tag for entry in next(project.iter("exclusion"))] == ["groupId", "artifactId"]
    assert {entry.text for exclusion in project.iter("exclusion") for entry in exclusion} == {"*"}


def test_an_ivy_file_names_every_jar_and_follows_nothing() -> None:
    module = ElementTree.fromstring(fetch.ivy_module(JARS[:2]))
    (dependency,) = module.iter("dependency")
    assert dependency.attrib == {"org": "g.h", "name": "a", "rev": "1", "transitive": "false"}
    classifiers = [artifact.get("{http://ant.apache.org/ivy/maven}classifier") for artifact in dependency]
    assert classifiers == [None, "linux"]


def test_maven_is_tried_again_and_progress_is_told(tools: Path, tmp_path: Path) -> None:
    write_tool(
        tools / "mvn",
        "again = (work / 'some.jar').exists(); (work / 'some.jar').write_text(''); time.sleep(0.2)\n"
        "sys.exit(0 if again else '[ERROR] the network is down')",
    )
    said: list[str] = []
    fetch.fetch("some", JARS, tmp_path / "work", said.append)
    assert "fetching the 3 jars of some with Maven, attempt 1 of 3" in said
    assert "fetching the 3 jars of some with Maven, attempt 2 of 3" in said
    assert any("1 of 3 jars after" in line for line in said)
    assert (tmp_path / "work" / "pom.xml").exists()


def test_no_network_is_one_line_after_three_attempts(tools: Path, tmp_path: Path) -> None:
    write_tool(
        tools / "mvn", "print('[INFO] working'); print('[ERROR] Unknown host'); print('[ERROR] help'); sys.exit(1)"
    )
    said: list[str] = []
    with pytest.raises(
        BrokerUnavailableError, match=r"in 3 attempts; is the network reachable\? .*Unknown host"
    ) as error:
        fetch.fetch("some", JARS, tmp_path / "work", said.append)
    assert "\n" not in str(error.value)
    assert sum("attempt" in line for line in said) == 3


def test_a_disk_that_fills_up_is_told_at_once(tools: Path, tmp_path: Path) -> None:
    write_tool(tools / "mvn", "sys.exit('[ERROR] No space left on device')")
    said: list[str] = []
    with pytest.raises(BrokerUnavailableError, match=r"no disk room .*; make room or point PENSTOCK_CACHE"):
        fetch.fetch("some", JARS, tmp_path / "work", said.append)
    assert [text for text in said if "attempt" in text] == [said[0]]


def test_without_maven_the_ivy_kept_in_the_cache_is_used(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "VENV", tmp_path / "no-venv")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    (tmp_path / "cache" / "ivy").mkdir(parents=True)
    (tmp_path / "cache" / "ivy" / "ivy-9.jar").write_text("")
    said: list[str] = []
    fetch.fetch("some", JARS, tmp_path / "work", said.append)
    asked = (tmp_path / "work" / "asked").read_text()
    assert said[0].startswith("fetching the 3 jars of some with Ivy")
    assert f"-jar {tmp_path}/cache/ivy/ivy-9.jar" in asked
    assert f"-Duser.home={tmp_path}/work" in asked


def test_ivy_is_taken_out_of_an_archive(tmp_path: Path) -> None:
    (tmp_path / "ivy-2.jar").write_text("the jar")
    with tarfile.open(tmp_path / "pyspark-9.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "ivy-2.jar", "pyspark-9/deps/jars/ivy-2.jar")
    (tmp_path / "out").mkdir()
    assert fetch._extract_ivy(tmp_path / "pyspark-9.tar.gz", tmp_path / "out").read_text() == "the jar"


def test_one_package_is_taken_out_of_a_requirements_lock(tmp_path: Path) -> None:
    (tmp_path / "lock.txt").write_text("a==1 \\\n    --hash=x\npyspark==4 \\\n    --hash=y \\\n    --hash=z\nzzz==1\n")
    lines = fetch._locked_lines(tmp_path / "lock.txt", "pyspark")
    assert lines == "pyspark==4 \\\n    --hash=y \\\n    --hash=z\n"


def test_a_set_may_take_its_versions_from_managed_poms() -> None:
    described = {"roots": ["g:a", "g:b:2"], "managed": ["g:parent:1"]}
    project = ElementTree.fromstring(lock.root_pom(described))
    managed = project.find("dependencyManagement/dependencies/dependency")
    assert managed is not None
    assert [field.text for field in managed] == ["g", "parent", "1", "pom", "import"]
    roots = project.findall("dependencies/dependency")
    assert [[field.text for field in root] for root in roots] == [["g", "a"], ["g", "b", "2"]]


@pytest.mark.parametrize(
    ("path", "coordinates"),
    [
        ("org/apache/kafka/kafka_2.13/4.3.1/kafka_2.13-4.3.1.jar", "org.apache.kafka:kafka_2.13:4.3.1"),
        ("io/netty/epoll/4.1/epoll-4.1-linux-x86_64.jar", "io.netty:epoll:4.1:linux-x86_64"),
    ],
)
def test_a_repository_path_tells_its_coordinates(path: str, coordinates: str) -> None:
    assert lock.coordinates(Path(path)) == coordinates


def test_locking_needs_maven_and_says_so(tools: Path) -> None:
    with pytest.raises(BrokerError, match="locking jars needs Maven on the PATH; install it"):
        lock.lock(["kafka"], lambda _: None)


def test_locking_an_unknown_set_names_those_known() -> None:
    with pytest.raises(BrokerError, match="names no set 'kaffka'; known: kafka"):
        lock.lock(["kaffka"], lambda _: None)


def test_no_java_is_one_line(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tools / "java").unlink()
    monkeypatch.setattr("brokers.runtime.VENV", tmp_path / "no-venv")
    with pytest.raises(
        BrokerUnavailableError, match=r"no Java of version 17 or newer in JAVA_HOME, .*; install one"
    ) as error:
        find_java()
    assert "\n" not in str(error.value)
    assert os.environ["PATH"] == str(tools)


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("", "no output"),
        ("one\ntwo\n\n", "two"),
        ("\x1b[31m[ERROR] it broke\x1b[0m\n[ERROR] help\n", "[ERROR] it broke"),
        ("working\n\t:: UNRESOLVED DEPENDENCIES ::\n\t::::::::::\n", ":: UNRESOLVED DEPENDENCIES ::"),
    ],
)
def test_the_most_telling_line_of_a_tool_is_shown(output: str, told: str) -> None:
    assert fetch.last_word(output) == told
