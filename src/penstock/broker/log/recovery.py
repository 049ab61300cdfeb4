"""What is done with files that the last process left, before anybody reads them.

Replaying puts what the journal holds into the segments, so that all that was acknowledged is in its place. Then each
partition is recovered when it is opened: from its recovery point on, every entry is verified; the first that is not
whole, or does not follow the one before it, is where the log ends. What is kept is synced before readers see it.

Nothing here can be done half: a crash on the way leaves files from which the same is done again.

Before the point nothing is cut. What is missing or spoilt there is told in the program's log, positions are not given a
second time, and readers are refused what is gone and served the rest.

Runs on: the loop thread.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

from penstock.broker.log.disk import opened, write_all
from penstock.broker.log.journal import Block, Item
from penstock.broker.log.layout import DATA, LOG, SEGMENT_HEAD_BYTES, START, LogKey, Point, segment_name
from penstock.broker.log.points import Points
from penstock.broker.log.scan import Mark
from penstock.broker.log.segment import Segment
from penstock.broker.log.volume import Volume
from penstock.errors import StorageDamagedError

COPY_BYTES: Final = 1 << 20

_log = logging.getLogger("penstock")


class Recovered(NamedTuple):
    """What is in a log."""

    segments: list[Segment]
    start: int
    end: int


def replay(volume: Volume, points: Points, blocks: Iterable[Block]) -> None:
    """Do what the journal says, and sync it; blocks below the points' floor say nothing any more."""
    items = [item for block in blocks if block.generation >= points.floor for item in block.items]
    starts = {item.key: item for item in items if item.kind == START}
    data: dict[tuple[LogKey, int], list[Item]] = {}
    for item in items:
        dropped = item.key in starts and item.base < starts[item.key].base
        if item.kind == DATA and not dropped:
            data.setdefault((item.key, item.base), []).append(item)
    for (key, base), pieces in data.items():
        _replay_segment(volume, key, base, pieces)
    for key, item in starts.items():
        points.start(key, item.base, item.place)


def _replay_segment(volume: Volume, key: LogKey, base: int, pieces: list[Item]) -> None:
    disk = volume.disk
    folder = volume.topic(key.topic_id).path
    path = folder / segment_name(key.partition, base, LOG)
    try:
        descriptor = disk.open(path)
    except FileNotFoundError:
        if pieces[0].place:  # not new when it was written: it was removed since
            return
        disk.make_folder(folder)
        descriptor = disk.open(path, create=True)
        disk.sync_folder(folder)
        disk.sync_folder(volume.topics_path)
    try:
        for piece in pieces:
            for at in range(0, piece.size, COPY_BYTES):
                size = min(COPY_BYTES, piece.size - at)
                with opened(disk, piece.path) as source:
                    write_all(disk, descriptor, [disk.read(source, size, piece.offset + at)], piece.place + at)
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)


def recover(volume: Volume, key: LogKey, name: str, point: Point | None) -> Recovered:
    """Find out what is in a partition's files, cut what is not whole, and sync the rest.

    Without a point the log starts wherever its first segment does.
    """
    bases = volume.bases(key)
    if point is None:
        point = beginning(bases[0] if bases else 0)
    gone = [base for base, following in pairwise(bases) if following <= point.start]
    segments = [Segment(volume, key, base, name) for base in bases[len(gone) :]]
    dropped = [Segment(volume, key, base, name) for base in gone]
    if not (segments and _is_unchanged(segments[-1], point)):
        dropped += _verify(volume, segments, point)
    _remove(volume, dropped)
    end = max(point.end, point.start)
    if segments:
        with contextlib.suppress(StorageDamagedError):  # told when it is read
            segments[-1].load(end)
        end = max(end, segments[-1].end)
    for segment in segments:
        segment.sealed = segment.sealed or segment is not segments[-1] or segment.base < point.base
    return Recovered(segments, point.start, end)


def beginning(base: int) -> Point:
    """The recovery point of a log of which nothing is known but where it starts."""
    return Point(0, base, base, base, SEGMENT_HEAD_BYTES, 0)


def _is_unchanged(last: Segment, point: Point) -> bool:
    """Whether a log ends where its recovery point is: nothing has to be verified."""
    if last.base != point.base or last.open() != point.offset:
        return False
    if point.offset <= SEGMENT_HEAD_BYTES and not point.exact:  # then nobody has synced the file
        return False
    if not last.take_summary(point.offset):
        for damage in last.rebuild(point.offset, Mark(point.offset, point.end)):
            _log.error("damaged: %s", damage)
    return last.end == point.end


def _verify(volume: Volume, segments: list[Segment], point: Point) -> list[Segment]:
    """Verify what follows the recovery point, segment by segment; those that do not count are taken out."""
    expected = point.base if point.offset <= SEGMENT_HEAD_BYTES else None
    for place, segment in enumerate(segments):
        if segment.base < point.base:
            continue
        size = segment.open()
        if size is None or (expected is not None and segment.base != expected):
            if size is None and segment.base == point.base and point.offset > SEGMENT_HEAD_BYTES:
                _log.error("damaged: %s has no head that says so", segment)
                expected = point.end
                continue
            return _cut(segments, place)
        in_point = segment.base == point.base
        _verify_segment(volume, segment, size, Mark(point.offset, point.end) if in_point else None)
        if segment.size < size:
            return _cut(segments, place + 1)
        expected = segment.end
    return []


def _verify_segment(volume: Volume, segment: Segment, size: int, known: Mark | None) -> None:
    trusted = known or Mark(SEGMENT_HEAD_BYTES, segment.base)
    segment.sealed = size < trusted.offset  # what stood there is not written over: the point may be read again
    trusted = trusted._replace(offset=min(trusted.offset, size))
    for damage in segment.rebuild(size, trusted):
        _log.error("damaged: %s", damage)
    if segment.end < trusted.position:
        _log.error("damaged: %s ends at position %d, was synced up to %d", segment, segment.end, trusted.position)
        segment.skip(Mark(segment.size, trusted.position))
    descriptor = segment.handle.fileno()
    if segment.size < size:
        _log.info("%s: cut from %d to %d bytes, the rest is not whole", segment, size, segment.size)
        volume.disk.truncate(descriptor, segment.size)
    volume.disk.sync(descriptor)
    volume.disk.sync_folder(segment.folder.path)


def _cut(segments: list[Segment], place: int) -> list[Segment]:
    gone = segments[place:]
    del segments[place:]
    return gone


def _remove(volume: Volume, segments: list[Segment]) -> None:
    """Remove the files of segments, the newest first, so that none is left without those before it."""
    for segment in reversed(segments):
        segment.handle.remove()
        for path in segment.paths():
            volume.disk.remove(path)
    if segments:
        volume.disk.sync_folder(segments[0].folder.path)
