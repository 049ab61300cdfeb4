"""Open files: few at a time, and none closed while somebody needs it.

A handle is closed when others are wanted and it was not used lately, and opened again when it is. Whoever needs the
descriptor beyond a call pins the handle: a slice being sent, the commit thread until a sync is over. A file that is
removed stays readable for those who have pinned it.

Runs on: the loop thread. The commit thread uses the descriptors of handles that were pinned for it.
"""

from __future__ import annotations

import errno
from collections import deque
from pathlib import Path

from penstock.broker.log.disk import Disk

FILES_MIN = 8


class Handle:
    """A file that is open or not."""

    __slots__ = ("_handles", "descriptor", "path", "pins", "removed", "used")

    def __init__(self, handles: Handles, path: Path, descriptor: int = -1) -> None:
        self._handles = handles
        self.path = path
        self.descriptor = descriptor
        self.used = True
        self.pins = 0
        self.removed = False
        if descriptor >= 0:
            handles.add(self)

    def fileno(self) -> int:
        """The descriptor, good until another handle is asked for its own, or for as long as this one is pinned."""
        self.used = True
        return self.descriptor if self.descriptor >= 0 else self._handles.open(self)

    def pin(self) -> int:
        """Keep it open until `unpin` is called as often; the descriptor."""
        descriptor = self.fileno()
        self.pins += 1
        return descriptor

    def unpin(self) -> None:
        """Let it go."""
        self.pins -= 1
        if self.removed and not self.pins:
            self._handles.close(self)

    def rest(self) -> None:
        """Close it now, unless somebody has it pinned."""
        if not self.pins:
            self._handles.close(self)

    def remove(self) -> None:
        """The file goes: close it as soon as nobody has it pinned, and never open it again."""
        self.removed = True
        if not self.pins:
            self._handles.close(self)

    def __repr__(self) -> str:
        return f"<Handle {self.path.name}, descriptor {self.descriptor}, {self.pins} pins>"


class Handles:
    """All handles of a data folder; about `files_max` of them are open, more only if they are all pinned."""

    def __init__(self, disk: Disk, files_max: int) -> None:
        self._disk = disk
        self.files_max = max(files_max, FILES_MIN)
        self._open: deque[Handle] = deque()

    def open(self, handle: Handle) -> int:
        """Open a handle's file, and close others that were not used lately, if there are too many."""
        if handle.removed:
            raise FileNotFoundError(errno.ENOENT, "removed", str(handle.path))
        try:
            handle.descriptor = self._disk.open(handle.path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._trim(len(self._open) // 2)
            handle.descriptor = self._disk.open(handle.path)
        self.add(handle)
        return handle.descriptor

    def add(self, handle: Handle) -> None:
        """Take notice of a handle that was opened."""
        self._open.append(handle)
        if len(self._open) > self.files_max:
            self._trim(self.files_max, handle)

    def close(self, handle: Handle) -> None:
        """Close a handle's file; whoever uses it next opens it again."""
        if handle.descriptor >= 0:
            self._open.remove(handle)
            self._shut(handle)

    def close_all(self) -> None:
        """Close every file, pinned or not."""
        while self._open:
            self._shut(self._open.popleft())

    def _trim(self, wanted: int, spared: Handle | None = None) -> None:
        """Close files until so many are left; those used since the last look have another chance."""
        for _ in range(2 * len(self._open)):
            if len(self._open) <= wanted:
                return
            handle = self._open.popleft()
            if handle.pins or handle.used or handle is spared:
                handle.used = False
                self._open.append(handle)
            else:
                self._shut(handle)

    def _shut(self, handle: Handle) -> None:
        descriptor, handle.descriptor = handle.descriptor, -1
        self._disk.close(descriptor)

    def __len__(self) -> int:
        return len(self._open)
