"""A disk in memory that can lose power: it keeps then whatever a real one might keep of what was not synced.

Of a file that is: for each page any of the states it had since the last sync, out of order; for its size any it had.
Of a folder: any of the names made, moved and removed since its last sync, each for itself. A synced file whose name was
not synced is gone.

It can also be full, read-only, or unable to sync a file; and it can lose power in the middle of things, after a number
of operations: `PowerLoss` is raised then, which nothing in a program may catch.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from penstock.wire.entry import Buffer


class PowerLoss(BaseException):
    """The power is gone."""


class Inode:
    """A file, as processes see it and as it may be found later."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.durable = data
        self.pages: dict[int, list[bytes]] = {}
        self.sizes: list[int] = []
        self.sick = False
        self.unreadable = False
        """Whether it lies on a bad sector."""

    def synced(self) -> None:
        if not self.sick:  # what a failed sync has dropped, no later one writes
            self.durable = bytes(self.data)
            self.pages.clear()
            self.sizes.clear()

    def after_crash(self, page: int, chance: Random) -> Inode:
        size = chance.choice([len(self.durable), *self.sizes])
        found = bytearray(self.durable[:size].ljust(size, b"\0"))
        for number, states in sorted(self.pages.items()):
            start = number * page
            state = chance.choice([self.durable[start : start + page], *states])[: max(size - start, 0)]
            stop = min(start + page, size)
            if start < size:
                found[start:stop] = state.ljust(stop - start, b"\0")
        return Inode(bytes(found))


class Folder:
    def __init__(self) -> None:
        self.names: dict[str, Inode | Folder] = {}
        self.durable: dict[str, Inode | Folder] = {}
        self.changes: list[dict[str, Inode | Folder | None]] = []

    def apply(self, change: dict[str, Inode | Folder | None]) -> None:
        self.changes.append(change)
        _apply(self.names, change)

    def synced(self) -> None:
        self.durable = dict(self.names)
        self.changes.clear()

    def after_crash(self, page: int, chance: Random, known: dict[int, Inode | Folder]) -> Folder:
        kept = dict(self.durable)
        for change in self.changes:
            if chance.random() < 0.5:
                _apply(kept, change)
        folder = Folder()
        for name, node in kept.items():
            if id(node) not in known:
                known[id(node)] = (
                    node.after_crash(page, chance) if isinstance(node, Inode) else node.after_crash(page, chance, known)
                )
            folder.names[name] = known[id(node)]
        folder.durable = dict(folder.names)
        return folder


def _apply(names: dict[str, Inode | Folder], change: dict[str, Inode | Folder | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _outcome(work: Callable[[], None]) -> OSError | None:
    try:
        work()
    except OSError as error:
        return error
    return None


class CrashDisk:
    """A `Disk`. `fuse` is after how many operations the power goes; `room` how many bytes there are in all."""

    def __init__(self, page: int = 64, root: Folder | None = None) -> None:
        self.page = page
        self.root = root or Folder()
        self.fuse: int | None = None
        self.room: int | None = None
        self.read_only = False
        self.sick: set[str] = set()
        """Ends of names of files that cannot be synced."""
        self.unopened: set[str] = set()
        """Ends of names of files that cannot be opened, as without descriptors."""
        self.syncs: list[str] = []
        self.opened: list[str] = []
        self._files: dict[int, tuple[Inode, str]] = {}
        self._next = 1000
        self._locks: dict[int, Inode] = {}

    def crash(self, chance: Random) -> CrashDisk:
        """The disk as another process finds it after the loss of power."""
        return CrashDisk(self.page, self.root.after_crash(self.page, chance, {}))

    def kill(self) -> CrashDisk:
        """The disk as another process finds it after this one was killed: nothing is lost, nothing is synced."""
        return CrashDisk(self.page, self.root)

    # Files

    def open(self, path: Path, *, create: bool = False) -> int:
        if create:
            self._tick(changes=True)
        if any(path.name.endswith(end) for end in self.unopened):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path.name)
        folder = self._folder(path.parent)
        node = folder.names.get(path.name)
        if create and node is not None:
            raise FileExistsError(errno.EEXIST, "exists", str(path))
        if create:
            node = Inode()
            folder.apply({path.name: node})
        if not isinstance(node, Inode):
            raise FileNotFoundError(errno.ENOENT, "missing", str(path))
        self.opened.append(path.name)
        return self._descriptor(node, path.name)

    def close(self, descriptor: int) -> None:
        self._locks.pop(descriptor, None)
        del self._files[descriptor]

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        self._tick(changes=True)
        inode, _name = self._files[descriptor]
        data = b"".join(buffers)
        if self.room is not None:
            grown = max(offset + len(data) - len(inode.data), 0)
            missing = grown - max(self.room - self.used(), 0)
            if missing >= len(data) > 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[: len(data) - max(missing, 0)]
        if offset > len(inode.data):
            inode.data += bytes(offset - len(inode.data))
        inode.data[offset : offset + len(data)] = data
        self._note(inode, offset, offset + len(data))
        return len(data)

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        inode, _name = self._files[descriptor]
        if inode.unreadable:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return bytes(inode.data[offset : offset + size])

    def size(self, descriptor: int) -> int:
        return len(self._files[descriptor][0].data)

    def truncate(self, descriptor: int, size: int) -> None:
        self._tick(changes=True)
        inode, _name = self._files[descriptor]
        before = len(inode.data)
        del inode.data[size:]
        inode.data += bytes(size - len(inode.data))
        self._note(inode, size, before)

    def sync(self, descriptor: int) -> None:
        self._tick()
        inode, name = self._files[descriptor]
        self.syncs.append(name)
        if any(name.endswith(end) for end in self.sick):
            inode.sick = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        inode.synced()

    def used(self) -> int:
        """How many bytes the files have."""
        return _used(self.root)

    # Names

    def sync_folder(self, folder: Path) -> None:
        self._tick()
        self._folder(folder).synced()
        self.syncs.append(f"{folder.name}/")

    def together(self, works: Sequence[Callable[[], None]]) -> list[OSError | None]:
        return [_outcome(work) for work in works]

    def make_folder(self, folder: Path) -> None:
        self._tick(changes=True)
        parent = self._folder(folder.parent)
        if folder.name not in parent.names:
            parent.apply({folder.name: Folder()})

    def names(self, folder: Path) -> list[str]:
        try:
            return list(self._folder(folder).names)
        except FileNotFoundError:
            return []

    def rename(self, path: Path, target: Path) -> None:
        self._tick(changes=True)
        folder = self._folder(path.parent)
        node = folder.names[path.name]
        folder.apply({target.name: node, path.name: None})

    def remove(self, path: Path) -> None:
        try:
            folder = self._folder(path.parent)
        except FileNotFoundError:
            return
        if path.name in folder.names:
            self._tick(changes=True)
            folder.apply({path.name: None})

    def remove_folder(self, folder: Path) -> None:
        self.remove(folder)

    def unlock(self, descriptor: int) -> None:
        self.close(descriptor)

    def lock(self, path: Path) -> int:
        self._tick(changes=True)
        folder = self._folder(path.parent)
        node = folder.names.get(path.name)
        if node is None:
            node = Inode()
            folder.apply({path.name: node})
        assert isinstance(node, Inode)
        if node in self._locks.values():
            raise BlockingIOError(errno.EAGAIN, "locked", str(path))
        descriptor = self._descriptor(node, path.name)
        self._locks[descriptor] = node
        return descriptor

    # For tests

    def file(self, path: Path) -> Inode:
        """A file, to look at it or to spoil it."""
        node = self._folder(path.parent).names[path.name]
        assert isinstance(node, Inode)
        return node

    def _descriptor(self, inode: Inode, name: str) -> int:
        self._next += 1
        self._files[self._next] = inode, name
        return self._next

    def _folder(self, path: Path) -> Folder:
        node: Inode | Folder = self.root
        for part in path.parts[1:]:
            found = node.names.get(part) if isinstance(node, Folder) else None
            if found is None:
                raise FileNotFoundError(errno.ENOENT, "missing", str(path))
            node = found
        assert isinstance(node, Folder)
        return node

    def _note(self, inode: Inode, start: int, stop: int) -> None:
        inode.sizes.append(len(inode.data))
        for number in range(start // self.page, -(-stop // self.page)):
            state = bytes(inode.data[number * self.page : (number + 1) * self.page])
            inode.pages.setdefault(number, []).append(state)

    def _tick(self, *, changes: bool = False) -> None:
        if changes and self.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                raise PowerLoss


def _used(folder: Folder) -> int:
    return sum(_used(node) if isinstance(node, Folder) else len(node.data) for node in folder.names.values())
