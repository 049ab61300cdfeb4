"""The file operations a log uses, and nothing else of a file system.

All bytes of a log pass through a `Disk`, so that tests can put one in its place that forgets at a crash what was not
synced. Descriptors are integers, as the system gives them: readers are served by `os.sendfile` from them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from penstock.errors import StorageError, StorageFailedError, StorageFullError, StorageReadOnlyError
from penstock.wire.entry import Buffer

IOV_MAX: Final = 1024
"""How many buffers one write takes."""

TOGETHER_MAX: Final = 16
"""How many syncs a disk is asked for at the same time."""

F_FULLFSYNC: Final = 51
"""macOS: sync up to the platter; plain fsync stops at the drive's own cache there."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


class Disk(Protocol):
    """What a log asks of a disk. Errors are the system's own, `OSError`; a log translates them.

    Runs on: the loop thread and the commit thread at the same time.
    """

    def open(self, path: Path, *, create: bool = False) -> int:
        """A descriptor to read and write a file; with `create` the file must not be there yet."""

    def close(self, descriptor: int) -> None:
        """Give a descriptor back."""

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write at this place; how many bytes were taken, which may be fewer when there is no room for all."""

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        """As many bytes from this place as there are, at most `size`."""

    def size(self, descriptor: int) -> int:
        """The size of a file."""

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut a file."""

    def sync(self, descriptor: int) -> None:
        """Return when all that was written to this file, and its size, would survive the loss of power."""

    def sync_folder(self, folder: Path) -> None:
        """Return when files made, renamed and removed in this folder would be so after the loss of power."""

    def together(self, works: Sequence[Callable[[], None]]) -> list[OSError | None]:
        """Do all of these, which do not mind each other, in any order or at the same time; what came of each."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder; one that is there already is left alone."""

    def names(self, folder: Path) -> list[str]:
        """The names in a folder, in no order; none when there is no such folder."""

    def rename(self, path: Path, target: Path) -> None:
        """Rename a file over another, which is gone then."""

    def remove(self, path: Path) -> None:
        """Remove a file; descriptors of it stay good. One that is gone already is no error."""

    def remove_folder(self, folder: Path) -> None:
        """Remove an empty folder; one that is gone already is no error."""

    def lock(self, path: Path) -> int:
        """A descriptor that holds the only lock on this file, made if needed; BlockingIOError while others hold it."""

    def unlock(self, descriptor: int) -> None:
        """Give up a lock and its descriptor, for children that inherited it, too."""


class SystemDisk:
    """The disk that the system has."""

    close = staticmethod(os.close)
    write = staticmethod(os.pwritev)
    read = staticmethod(os.pread)
    truncate = staticmethod(os.ftruncate)
    rename = staticmethod(os.replace)

    def open(self, path: Path, *, create: bool = False) -> int:
        """A descriptor to read and write a file; with `create` the file must not be there yet."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL) * create, 0o644)

    def size(self, descriptor: int) -> int:
        """The size of a file."""
        return os.fstat(descriptor).st_size

    def sync(self, descriptor: int) -> None:
        """Return when all that was written to this file, and its size, would survive the loss of power."""
        if hasattr(os, "fdatasync"):
            os.fdatasync(descriptor)
        else:
            fcntl.fcntl(descriptor, F_FULLFSYNC)

    def sync_folder(self, folder: Path) -> None:
        """Return when files made, renamed and removed in this folder would be so after the loss of power."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def together(self, works: Sequence[Callable[[], None]]) -> list[OSError | None]:
        """Do all of these, several at a time: syncs that a disk is asked for together cost it little more than one."""
        outcomes: list[Exception | None] = [None] * len(works)
        places = iter(range(len(works)))

        def work() -> None:
            for place in places:
                try:
                    works[place]()
                except Exception as error:  # noqa: BLE001  # raised below, on the thread that asked for it
                    outcomes[place] = error

        hands = [threading.Thread(target=work, name="penstock-sync", daemon=True) for _ in works[1:TOGETHER_MAX]]
        begun = list(itertools.takewhile(_begins, hands))
        work()
        for hand in begun:
            hand.join()
        return [_foreseen(outcome) for outcome in outcomes]

    def make_folder(self, folder: Path) -> None:
        """Make a folder; one that is there already is left alone."""
        folder.mkdir(exist_ok=True)

    def names(self, folder: Path) -> list[str]:
        """The names in a folder, in no order; none when there is no such folder."""
        try:
            return os.listdir(folder)  # noqa: PTH208  # names are wanted, not paths
        except FileNotFoundError:
            return []

    def remove(self, path: Path) -> None:
        """Remove a file; descriptors of it stay good. One that is gone already is no error."""
        path.unlink(missing_ok=True)

    def remove_folder(self, folder: Path) -> None:
        """Remove an empty folder; one that is gone already is no error."""
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()

    def lock(self, path: Path) -> int:
        """A descriptor that holds the only lock on this file, made if needed; BlockingIOError while others hold it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def unlock(self, descriptor: int) -> None:
        """Give up a lock and its descriptor; children that inherited it by `fork()` hold it no longer."""
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _begins(hand: threading.Thread) -> bool:
    """Whether a thread could be begun: at the end of the interpreter none is, and one does all the work."""
    try:
        hand.start()
    except RuntimeError:
        return False
    return True


def _foreseen(outcome: Exception | None) -> OSError | None:
    if outcome is None or isinstance(outcome, OSError):
        return outcome
    raise outcome


def storage_error(error: OSError, what: str) -> StorageError:
    """What the system's error means to whoever wanted something stored."""
    kind: type[StorageError] = StorageFailedError
    if error.errno in _FULL:
        kind = StorageFullError
    elif error.errno in _READ_ONLY:
        kind = StorageReadOnlyError
    translated = kind(f"{what}: {error.strerror or error}")
    translated.__cause__ = error
    return translated


@contextlib.contextmanager
def opened(disk: Disk, path: Path, *, create: bool = False) -> Iterator[int]:
    """A descriptor for as long as the context lasts."""
    descriptor = disk.open(path, create=create)
    try:
        yield descriptor
    finally:
        disk.close(descriptor)


def write_all(disk: Disk, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
    """Write all of these bytes, in as many writes as it takes; how many they are."""
    total = 0
    for start in range(0, len(buffers), IOV_MAX):
        some = buffers[start : start + IOV_MAX]
        size = sum(map(len, some))
        written = disk.write(descriptor, some, offset + total)
        if written < size:
            _write_rest(disk, descriptor, some, offset + total, written)
        total += size
    return total


def _write_rest(disk: Disk, descriptor: int, buffers: Sequence[Buffer], offset: int, written: int) -> None:
    rest = memoryview(b"".join(buffers))
    while written < len(rest):
        taken = disk.write(descriptor, [rest[written:]], offset + written)
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written += taken


def replace_file(disk: Disk, path: Path, buffers: Sequence[Buffer], *, durable: bool) -> None:
    """Put a file with these bytes in the place of whatever has that name; durable: when this returns."""
    new = path.with_name(f"{path.name}.new")
    disk.remove(new)
    try:
        with opened(disk, new, create=True) as descriptor:
            write_all(disk, descriptor, buffers, 0)
            if durable:
                disk.sync(descriptor)
        disk.rename(new, path)
    except OSError:
        disk.remove(new)
        raise
    if durable:
        disk.sync_folder(path.parent)


def read_file(disk: Disk, path: Path) -> bytes | None:
    """All bytes of a file; None when there is no such file."""
    try:
        with opened(disk, path) as descriptor:
            return disk.read(descriptor, disk.size(descriptor), 0)
    except FileNotFoundError:
        return None
