"""Fetches exactly the jars of a lock: with Maven when it is found, else with the Ivy that PySpark carries.

Neither tool resolves anything here: each is given every jar by name and told to follow no dependency. Registries are
the tools' own defaults and the user's own settings. Checksums are the caller's business (`jars.verify`).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from brokers.cache import cache_root
from brokers.errors import BrokerError, BrokerUnavailableError
from brokers.jars import Jar, Say
from brokers.runtime import ROOT, VENV, find_java, trust_store

ATTEMPTS = 3
RETRY_DELAY_S = 2.0
PROGRESS_EVERY_S = 5.0
ATTEMPT_LIMIT_S = 1800.0
DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*m")
TELLING = re.compile(
    r"ERROR|FAILED|not found|Exception|refused|unresolved|unreachable|unknown host|no space left", re.IGNORECASE
)
POM = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>
{parts}
</project>
"""
ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="default"/>
  <resolvers><ibiblio name="default" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
IVY_MODULE = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="penstock" module="jars"/>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


def fetch(name: str, jars: Sequence[Jar], work: Path, say: Say) -> None:
    """Bring the jars into `work/jars`, trying again when the network fails."""
    work.mkdir(parents=True, exist_ok=True)
    tool, command, environment = _command(jars, work, say)
    for attempt in range(1, ATTEMPTS + 1):
        say(f"fetching the {len(jars)} jars of {name} with {tool}, attempt {attempt} of {ATTEMPTS}")
        failure = _run(command, environment, work, len(jars), say)
        if failure is None:
            return
        if "no space left" in failure.lower():
            raise BrokerUnavailableError(
                f"no disk room for the jars of {name!r} in {work.parent}; "
                "make room or point PENSTOCK_CACHE to another folder"
            )
        if attempt < ATTEMPTS:
            time.sleep(RETRY_DELAY_S * attempt)
    raise BrokerUnavailableError(
        f"the jars of {name!r} could not be fetched with {tool} in {ATTEMPTS} attempts; is the network reachable? "
        f"Its last word ({work / 'fetch.log'}): {failure}"
    )


def _command(jars: Sequence[Jar], work: Path, say: Say) -> tuple[str, list[str], dict[str, str]]:
    """The tool's name, its command line and its environment."""
    java = find_java()
    if maven := shutil.which("mvn"):
        (work / "pom.xml").write_text(locked_pom(jars))
        target = [f"-DoutputDirectory={work / 'jars'}", "-Dmdep.prependGroupId=true"]
        goal = [f"{DEPENDENCY_PLUGIN}:copy-dependencies", *target]
        return "Maven", maven_command(maven, work, goal), maven_environment(java)
    ivy = find_ivy(say)
    (work / "ivysettings.xml").write_text(IVY_SETTINGS)
    (work / "ivy.xml").write_text(ivy_module(jars))
    trust = [f"-Djavax.net.ssl.trustStore={store}"] if (store := trust_store()) else []
    command = [
        *(str(java), *trust, f"-Duser.home={work}", "-jar", str(ivy)),
        *("-settings", str(work / "ivysettings.xml"), "-cache", str(work / "ivy")),
        *("-ivy", str(work / "ivy.xml"), "-warn"),
        *("-retrieve", f"{work / 'jars'}/[organisation].[artifact]-[revision](-[classifier]).[ext]"),
    ]
    return "Ivy", command, dict(os.environ)


def maven_command(maven: str, work: Path, goal: Sequence[str]) -> list[str]:
    """Maven on the work folder's pom, with a repository of its own that is thrown away afterwards."""
    quiet = ["-B", "-q", "-Dstyle.color=never"]
    return [maven, *quiet, f"-Dmaven.repo.local={work / 'm2'}", "-f", str(work / "pom.xml"), *goal]


def maven_environment(java: Path) -> dict[str, str]:
    """The environment in which Maven finds our Java and trusts what this machine trusts."""
    environment = dict(os.environ)
    if store := trust_store():
        environment["MAVEN_OPTS"] = f"{environment.get('MAVEN_OPTS', '')} -Djavax.net.ssl.trustStore={store}".strip()
    environment["JAVA_HOME"] = str(java.resolve().parents[1])
    return environment


def locked_pom(jars: Sequence[Jar]) -> str:
    """A pom that names every jar and follows none of their dependencies."""
    return pom([dependency(jar.coordinates.split(":"), ALONE) for jar in jars])


def pom(dependencies: Sequence[str], managed: Sequence[str] = ()) -> str:
    """A pom with these dependencies."""
    parts = [f"<dependencies>{''.join(dependencies)}</dependencies>"]
    if managed:
        parts.insert(0, f"<dependencyManagement><dependencies>{''.join(managed)}</dependencies></dependencyManagement>")
    return POM.format(parts="\n".join(parts))


def dependency(coordinates: Sequence[str], more: str = "") -> str:
    """One `<dependency>` of a pom: group, artifact and, where given, version and classifier."""
    tags = ("groupId", "artifactId", "version", "classifier")
    inner = "".join(f"<{tag}>{escape(text)}</{tag}>" for tag, text in zip(tags, coordinates, strict=False))
    return f"<dependency>{inner}{more}</dependency>"


def ivy_module(jars: Sequence[Jar]) -> str:
    """An Ivy file that names every jar and follows none of their dependencies."""
    modules: dict[tuple[str, str, str], list[str]] = {}
    for jar in jars:
        classifier = f' m:classifier="{jar.classifier}"' if jar.classifier else ""
        artifact = f'<artifact name="{jar.artifact}" type="jar" ext="jar"{classifier}/>'
        modules.setdefault((jar.group, jar.artifact, jar.version), []).append(artifact)
    lines = [
        f'<dependency org="{group}" name="{name}" rev="{version}" transitive="false">{"".join(artifacts)}</dependency>'
        for (group, name, version), artifacts in modules.items()
    ]
    return IVY_MODULE.format(dependencies="\n".join(lines))


def _run(command: list[str], environment: dict[str, str], work: Path, total: int, say: Say) -> str | None:
    """Run the tool while telling how many jars are there; what it said last when it fails, else None."""
    log = work / "fetch.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=work
        )
    started = time.monotonic()
    try:
        while True:
            try:
                status = process.wait(PROGRESS_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                elapsed = time.monotonic() - started
                say(f"{min(total, sum(1 for _ in work.rglob('*.jar')))} of {total} jars after {elapsed:.0f} s")
                if elapsed > ATTEMPT_LIMIT_S:
                    return f"nothing more after {elapsed:.0f} s"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return None if status == 0 else last_word(log.read_text(errors="replace"))


def last_word(output: str) -> str:
    """The line of a tool's output that tells most: the first error, else the last line, cut to a readable length."""
    lines = [TERMINAL_CODES.sub("", line).strip() for line in output.splitlines()]
    lines = [line for line in lines if re.search(r"\w", line)]
    telling = [line for line in lines if TELLING.search(line)]
    return next(iter(telling or lines[-1:]), "no output")[:300]


def find_ivy(say: Say) -> Path:
    """An Ivy jar: out of an installed PySpark, or taken once out of the archive that `requirements/spark.txt` locks."""
    kept = cache_root() / "ivy"
    spec = importlib.util.find_spec("pyspark")
    installed = [Path(spec.origin).parent / "jars"] if spec is not None and spec.origin else []
    environments = [VENV, *sorted((cache_root() / "envs").glob("*"))]
    for environment in environments:
        installed += sorted(environment.glob("lib/python3*/site-packages/pyspark/jars"))
    for folder in [*installed, kept]:
        if found := sorted(folder.glob("ivy-*.jar")):
            return found[-1]
    return _take_ivy(kept, say)


def _take_ivy(kept: Path, say: Say) -> Path:
    """Download the locked PySpark archive with pip, which checks its hash, and keep only the Ivy jar of it."""
    say("neither Maven nor PySpark found: downloading PySpark once (450 MB) for the Ivy inside it")
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ivy-", dir=kept.parent) as folder:
        work = Path(folder)
        (work / "pyspark.txt").write_text(_locked_lines(ROOT / "requirements" / "spark.txt", "pyspark"))
        command = [
            *(sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--quiet"),
            *("--no-deps", "--require-hashes", "--requirement", str(work / "pyspark.txt"), "--dest", str(work)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=work)
        archive = next(iter(work.glob("pyspark-*.tar.gz")), None)
        if done.returncode or archive is None:
            raise BrokerUnavailableError(
                "no Maven here, and PySpark's Ivy could not be had instead; install Maven or check the network: "
                f"{last_word(done.stderr)}"
            )
        jar = _extract_ivy(archive, work)
        return jar.rename(kept / jar.name)


def _extract_ivy(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as packed:
        member = next((entry for entry in packed if "/jars/ivy-" in entry.name), None)
        content = packed.extractfile(member) if member else None
        if member is None or content is None:
            raise BrokerError(f"{archive.name} carries no Ivy; install Maven")
        jar = folder / Path(member.name).name
        jar.write_bytes(content.read())
        return jar


def _locked_lines(lock: Path, package: str) -> str:
    """The lines of one package out of a requirements lock, its hashes included."""
    lines = lock.read_text().splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith(f"{package}=="))
    last = next((index for index in range(first, len(lines)) if not lines[index].endswith("\\")), first)
    return "\n".join(lines[first : last + 1]) + "\n"
