"""The locked jars and the cache they are fetched into.

Owns: `sets.toml`, `locks/*.lock`, and the folder `jars/` of the cache, shared by all checkouts on this machine. A set
of jars stands in a folder named after its lock's digest, so checkouts with different locks never disturb each other;
the folder appears by one rename when every checksum has been verified. Never: a jar that the lock does not name.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from brokers.cache import cache_root, file_lock
from brokers.errors import BrokerError, BrokerUnavailableError

HERE = Path(__file__).resolve().parent
LOCKS = HERE / "locks"
HEADER = (
    "# Made by `make lock-jars` from brokers/sets.toml; do not edit: sha256, group:artifact:version[:classifier].\n"
)
DISK_BYTES_MIN = 512 << 20  # jars, the fetching tool's copy of them and its own parts

Say = Callable[[str], None]
Fetch = Callable[[str, Sequence["Jar"], Path, Say], None]  # set, jars, a work folder that holds them afterwards


@dataclass(frozen=True, slots=True)
class Jar:
    """One jar of a lock: where it comes from and what its bytes must be."""

    group: str
    artifact: str
    version: str
    classifier: str
    sha256: str

    @property
    def coordinates(self) -> str:
        """As written in the lock."""
        return ":".join(part for part in (self.group, self.artifact, self.version, self.classifier) if part)

    @property
    def name(self) -> str:
        """The file's name; with the group in it, since two groups may have an artifact of one name."""
        return f"{self.group}.{self.artifact}-{self.version}{'-' if self.classifier else ''}{self.classifier}.jar"


def lock_path(name: str) -> Path:
    """Where the lock of a set stands."""
    path = LOCKS / f"{name}.lock"
    if not path.exists():
        known = ", ".join(sorted(found.stem for found in LOCKS.glob("*.lock")))
        raise BrokerError(f"no set of jars is named {name!r}; known: {known}")
    return path


def read_lock(path: Path) -> list[Jar]:
    """The jars of a lock, in its order."""
    lines = (line for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return [_jar(*line.split()) for line in lines]


def _jar(sha256: str, coordinates: str) -> Jar:
    group, artifact, version, *classifier = coordinates.split(":")
    return Jar(group, artifact, version, "".join(classifier), sha256)


def ensure(name: str, say: Say, fetch: Fetch | None = None) -> list[Path]:
    """The files of a set, verified; fetched first where the cache lacks them."""
    jars = read_lock(lock_path(name))
    folder = cache_root() / "jars" / f"{name}-{_digest_of(jars)}"
    if not complete(jars, folder):
        try:
            _fetch_locked(name, jars, folder, say, fetch)
        except OSError as error:
            raise BrokerUnavailableError(
                f"the jars of {name!r} cannot be kept in {folder.parent}: {error.strerror or error}; "
                "make room there or point PENSTOCK_CACHE to another folder"
            ) from error
    return [folder / jar.name for jar in jars]


def _digest_of(jars: Sequence[Jar]) -> str:
    """A short name for exactly these jars."""
    return hashlib.sha256("".join(f"{jar.sha256} {jar.coordinates}\n" for jar in jars).encode()).hexdigest()[:12]


def complete(jars: Sequence[Jar], folder: Path) -> bool:
    """Whether the folder holds every jar with its right bytes."""
    return all((folder / jar.name).is_file() and digest(folder / jar.name) == jar.sha256 for jar in jars)


def _fetch_locked(name: str, jars: Sequence[Jar], folder: Path, say: Say, fetch: Fetch | None) -> None:
    """Fetch while holding the set's file lock; whoever waited for it finds the work done."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    waiting = f"another checkout is fetching the jars of {name}: waiting for it"
    with file_lock(folder.with_suffix(".lock"), lambda: say(waiting)):
        if complete(jars, folder):
            return
        if shutil.disk_usage(folder.parent).free < DISK_BYTES_MIN:
            raise BrokerUnavailableError(
                f"the jars of {name!r} need {DISK_BYTES_MIN >> 20} MB free in {folder.parent}; "
                "make room there or point PENSTOCK_CACHE to another folder"
            )
        work = folder.with_suffix(".work")  # stays after a failure, so that the next call goes on where this one ended
        (fetch or _default_fetch())(name, jars, work, say)
        try:
            verify(jars, work / "jars")
        except BrokerError:
            shutil.rmtree(work)
            raise
        shutil.rmtree(folder, ignore_errors=True)
        (work / "jars").rename(folder)
        shutil.rmtree(work, ignore_errors=True)


def _default_fetch() -> Fetch:
    from brokers import fetch  # only when something is missing: a complete cache needs no tool

    return fetch.fetch


def verify(jars: Sequence[Jar], folder: Path) -> None:
    """Raise for the first jar that is missing or has other bytes than the lock says; delete what is wrong."""
    for jar in jars:
        path = folder / jar.name
        if not path.is_file():
            raise BrokerUnavailableError(f"{jar.coordinates} did not arrive; try again, or lock a version that exists")
        if (found := digest(path)) != jar.sha256:
            path.unlink()
            raise BrokerError(f"{jar.coordinates} is refused: its sha256 must be {jar.sha256} but is {found}")


def digest(path: Path) -> str:
    """The file's sha256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
