"""Makes `locks/*.lock` anew from `sets.toml`: Maven resolves each set, the checksums are those of what it fetched.

Only for the person who changes a version; needs Maven. Everybody else fetches exactly what the lock says.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brokers import fetch
from brokers.errors import BrokerError
from brokers.jars import HEADER, HERE, LOCKS, Say, digest
from brokers.runtime import find_java


def lock(names: Sequence[str], say: Say) -> None:
    """Write the locks of the named sets, or of all."""
    sets = tomllib.loads((HERE / "sets.toml").read_text())
    if unknown := [name for name in names if name not in sets]:
        raise BrokerError(f"brokers/sets.toml names no set {unknown[0]!r}; known: {', '.join(sets)}")
    if shutil.which("mvn") is None:
        raise BrokerError("locking jars needs Maven on the PATH; install it (fetching locked jars does without)")
    for name in names or sets:
        say(f"resolving the jars of {name}")
        lines = resolve(sets[name])
        (LOCKS / f"{name}.lock").write_text(HEADER + "\n".join(lines) + "\n")
        say(f"brokers/locks/{name}.lock: {len(lines)} jars")


def resolve(described: dict[str, Any]) -> list[str]:
    """The lock's lines for a set: what Maven takes for its roots."""
    with tempfile.TemporaryDirectory(prefix="penstock-lock-") as folder:
        work = Path(folder)
        (work / "pom.xml").write_text(root_pom(described))
        goal = [
            *(f"{fetch.DEPENDENCY_PLUGIN}:copy-dependencies", "-DincludeScope=runtime"),
            *(f"-DoutputDirectory={work / 'jars'}", "-Dmdep.useRepositoryLayout=true"),
        ]
        command = fetch.maven_command("mvn", work, goal)
        environment = fetch.maven_environment(find_java())
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise BrokerError(f"Maven could not resolve {described['roots']}: {fetch.last_word(done.stdout)}")
        found = {coordinates(path.relative_to(work / "jars")): path for path in (work / "jars").rglob("*.jar")}
        return [f"{digest(path)}  {name}" for name, path in sorted(found.items())]


def root_pom(described: dict[str, Any]) -> str:
    """The pom of a set's roots and of the poms that manage their versions."""
    imported = "<type>pom</type><scope>import</scope>"
    alone = "" if described.get("transitive", True) else fetch.ALONE
    managed = [fetch.dependency(text.split(":"), imported) for text in described.get("managed", ())]
    return fetch.pom([fetch.dependency(text.split(":"), alone) for text in described["roots"]], managed)


def coordinates(path: Path) -> str:
    """What a path in a Maven repository tells: gr/o/up/artifact/version/artifact-version[-classifier].jar."""
    *group, artifact, version, name = path.parts
    classifier = name.removeprefix(f"{artifact}-{version}").removesuffix(".jar").removeprefix("-")
    return ":".join([".".join(group), artifact, version, *([classifier] if classifier else [])])
