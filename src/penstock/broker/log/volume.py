"""What all logs of a data folder share: the disk, the folder, the open files, the formats entries come in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from penstock.broker.log.disk import Disk
from penstock.broker.log.handles import Handles
from penstock.broker.log.layout import LOG, TOPICS, LogKey, parse_segment_name, topic_folder
from penstock.wire.entry import EntryFormat


class TopicFolder:
    """The folder of a topic's segments, made with the first of them."""

    __slots__ = ("made", "named", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made = False
        self.named = True
        """Whether it would be there after the loss of power; set by the commit thread once that is so."""


class Volume:
    """Runs on: the loop thread; the commit thread uses the disk."""

    def __init__(self, disk: Disk, folder: Path, files_max: int, formats: Sequence[EntryFormat]) -> None:
        self.disk = disk
        self.folder = folder
        self.topics_path = folder / TOPICS
        self.handles = Handles(disk, files_max)
        self.formats = {each.number: each for each in formats}
        self.unnamed: dict[TopicFolder, None] = {}
        """Topics' folders that were made, and whose names are not durable yet."""
        self._topics: dict[UUID, TopicFolder] = {}
        self._listings: dict[UUID, dict[int, list[int]]] = {}

    def topic(self, topic_id: UUID) -> TopicFolder:
        """A topic's folder, whether it exists or not."""
        folder = self._topics.get(topic_id)
        if folder is None:
            folder = self._topics[topic_id] = TopicFolder(topic_folder(self.folder, topic_id))
        return folder

    def make_topic(self, topic_id: UUID) -> None:
        """Make a topic's folder, unless this was done already."""
        folder = self.topic(topic_id)
        if not folder.made:
            folder.named = False
            self.disk.make_folder(folder.path)
            folder.made = True
            self.unnamed[folder] = None

    def name_folders(self) -> None:
        """Make the names of all topics' folders durable that are made by now. Runs on: the commit thread."""
        unnamed = list(self.unnamed)
        self.disk.sync_folder(self.topics_path)
        for folder in unnamed:
            folder.named = True
            self.unnamed.pop(folder, None)

    def forget_topic(self, topic_id: UUID) -> None:
        """A topic is deleted."""
        self._topics.pop(topic_id, None)
        self._listings.pop(topic_id, None)

    def bases(self, key: LogKey) -> list[int]:
        """The segments that a partition has on disk, in order. Asked once for each partition, before it writes."""
        listing = self._listings.get(key.topic_id)
        if listing is None:
            listing = self._listings[key.topic_id] = {}
            for name in self.disk.names(self.topic(key.topic_id).path):
                parsed = parse_segment_name(name)
                if parsed is not None and parsed[2] == LOG:
                    listing.setdefault(parsed[0], []).append(parsed[1])
        found = sorted(listing.pop(key.partition, ()))
        if not listing:
            del self._listings[key.topic_id]
        return found
