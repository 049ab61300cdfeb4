"""What a copier writes beside its position, so that whoever comes next knows what the position means.

A copier of pipeline NAME commits, for each partition that it writes to, the next position of its source, as a mark of
the group `penstock.NAME` in the target cluster. The note beside it is compact JSON, at most `NOTE_BYTES_MAX` bytes:

    "penstock"   1: the version of the note
    "cluster"    the id of the source's cluster
    "topic"      its name, and under "id" what a topic of this name that is made later does not share, or null
    "partition"  its number
    "writers"    producer ids under which the target was written to, each but the last followed by the target's position
                 behind all that it wrote; the last one writes at present
    "known_from" from which of the target's positions on all of them are named; 0 where it is missing
    "through"    ids of clusters that messages of the source may have come through before; none where it is missing
    "log"        the id of the target's topic that it stands beside: a position says nothing of a topic that was made
                 anew; missing where topics have no ids

A batch is known as a copy by its producer id, for which see `origins`. Ids are dropped from the front, which moves
`known_from`: whoever reads what lies before it knows that something is missing, and is not misled. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from uuid import UUID

from penstock.errors import ConfigError
from penstock.wire.protocol import Partition

VERSION: Final = 1
NOTE_BYTES_MAX: Final = 4096
"""What Kafka takes unless it is told otherwise (`offset.metadata.max.bytes`)."""
WRITERS_MAX: Final = 64
"""Each commit carries them all. An id that counts an epoch up with each transaction is used up after 32,767 of them: at
ten in a second these cover two days, at one in a second three weeks."""
NAME_CHARS_MAX: Final = 100
GROUP_PREFIX: Final = "penstock."

_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> str:
    """The name as it is; ConfigError when a pipeline cannot be called so."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
        raise ConfigError(
            f"name: a pipeline is called by 1 to {NAME_CHARS_MAX} letters, digits, dots, underscores and hyphens, "
            f"found {name!r}"
        )
    return name


def group_of(name: str) -> str:
    """The group under which a pipeline's positions are committed."""
    return f"{GROUP_PREFIX}{name}"


def pipeline_of(group: str) -> str | None:
    """The pipeline that a group's name stands for; None for a group of somebody else."""
    return group.removeprefix(GROUP_PREFIX) if group.startswith(GROUP_PREFIX) else None


def transactional_id(name: str, topic: str, partition: int) -> str:
    """By which a copier is the only one of its pipeline that writes to this partition of the target.

    Dots would not do between the parts: names and topics have some, and two pipelines would fence each other.
    """
    return f"{group_of(name)}/{topic}/{partition}"


class Writer(NamedTuple):
    """A producer id under which a copier wrote, and the target's position behind all that; None while it is in use."""

    producer: int
    end: int | None = None


@dataclass(frozen=True, slots=True)
class SourceNote:
    """Where a partition's messages are copied from, and under which producer ids."""

    cluster: str
    topic: str
    topic_id: UUID | None
    partition: int
    writers: tuple[Writer, ...] = ()
    known_from: int = 0
    through: frozenset[str] = frozenset()
    log: UUID | None = None

    def __str__(self) -> str:
        return f"{Partition(self.topic, self.partition)} of cluster {self.cluster}"

    @property
    def producers(self) -> frozenset[int]:
        """All producer ids that are named."""
        return frozenset(writer.producer for writer in self.writers)

    @property
    def ancestry(self) -> frozenset[str]:
        """The clusters that a copied message may have come through, the source among them."""
        return self.through | {self.cluster}

    # How it changes

    def succeeding(self, found: SourceNote) -> SourceNote:
        """This note with what the one that it takes the place of knows, so that older copies are still told.

        ConfigError where that is of another cluster: a note cannot speak for two.
        """
        if found.cluster != self.cluster:
            raise ConfigError(f"{self.difference(found)}: a pipeline keeps to one source cluster, name this one anew")
        through = self.through | found.through
        return _bounded(replace(self, writers=found.writers, known_from=found.known_from, through=through))

    def written_by(self, producer: int, end: int) -> SourceNote:
        """The note to commit before anything is written under this producer id.

        `end` is where the target's log ended when nobody could write under the ids before it any more.
        """
        if self.writers and self.writers[-1].producer == producer:
            return self
        before = [writer for writer in self.writers if writer.producer != producer]
        ended = (writer if writer.end is not None else Writer(writer.producer, end) for writer in before)
        return _bounded(replace(self, writers=(*ended, Writer(producer))))

    def coming_through(self, clusters: Iterable[str]) -> SourceNote:
        """The note to commit before messages are written that came through these clusters."""
        through = self.through.union(clusters)
        return self if through == self.through else _bounded(replace(self, through=through))

    def beside(self, log: UUID | None) -> SourceNote:
        """The note to commit beside this topic of the target."""
        return self if log == self.log else _bounded(replace(self, log=log))

    # What it is compared with

    def same_source(self, other: SourceNote) -> bool:
        """Whether positions of the one are positions of the other."""
        return self.difference(other) is None

    def is_of_another_log(self, log: UUID | None) -> bool:
        """Whether the target's topic was made anew since this was committed."""
        return None not in (self.log, log) and self.log != log

    def difference(self, found: SourceNote) -> str | None:
        """Why a position that was committed beside `found` is none of this source; None where it is one."""
        if found.cluster != self.cluster:
            return f"the position is one of {found}, and the source is cluster {self.cluster}"
        if found.topic_id is not None and self.topic_id is not None:
            other_topic = found.topic_id != self.topic_id
        else:
            other_topic = found.topic != self.topic
        if other_topic and found.topic == self.topic:
            return (
                f"topic {self.topic} was deleted and created again since the position was committed (its id was "
                f"{found.topic_id} and is {self.topic_id}), and the position means nothing in the new one"
            )
        if other_topic or found.partition != self.partition:
            return f"the position is one of {found}, and the source is {Partition(self.topic, self.partition)}"
        return None

    # As text

    def encode(self) -> str:
        """The text; ConfigError for one that no broker would take."""
        text = _text(self)
        if len(text) > NOTE_BYTES_MAX:
            raise ConfigError(
                f"{self}: what is to be committed beside a position takes {len(text)} bytes, {NOTE_BYTES_MAX} are the "
                f"limit; its messages come through {len(self.through)} clusters"
            )
        return text

    @classmethod
    def decode(cls, text: str) -> SourceNote | None:
        """What a text says; None for a text that no copier wrote, or one of a later version."""
        said = _read(text)
        if said is None or said["penstock"] != VERSION:
            return None
        try:
            return cls(
                _string(said["cluster"]),
                _string(said["topic"]),
                None if said["id"] is None else UUID(_string(said["id"])),
                _number(said["partition"]),
                _writers([_number(number) for number in _list(said["writers"])]),
                _number(said.get("known_from", 0)),
                frozenset(_string(cluster) for cluster in _list(said.get("through", []))),
                UUID(_string(said["log"])) if "log" in said else None,
            )
        except (KeyError, TypeError, ValueError):
            return None


def version_of(text: str) -> int | None:
    """The version of a note; None for a text that no copier wrote."""
    said = _read(text)
    return None if said is None else said["penstock"]


def _bounded(note: SourceNote) -> SourceNote:
    """The same with the oldest writers left out while there are too many."""
    while len(note.writers) > 1 and (len(note.writers) > WRITERS_MAX or len(_text(note)) > NOTE_BYTES_MAX):
        oldest = note.writers[0]
        note = replace(note, writers=note.writers[1:], known_from=max(note.known_from, oldest.end or 0))
    return note


def _text(note: SourceNote) -> str:
    said: dict[str, Any] = {
        "penstock": VERSION,
        "cluster": note.cluster,
        "topic": note.topic,
        "id": None if note.topic_id is None else str(note.topic_id),
        "partition": note.partition,
        "writers": [number for writer in note.writers for number in writer if number is not None],
    }
    if note.known_from:
        said["known_from"] = note.known_from
    if note.through:
        said["through"] = sorted(note.through)
    if note.log is not None:
        said["log"] = str(note.log)
    return json.dumps(said, separators=(",", ":"))


def _read(text: str) -> dict[str, Any] | None:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_note = isinstance(said, dict) and type(said.get("penstock")) is int
    return said if is_note else None


def _writers(numbers: Sequence[int]) -> tuple[Writer, ...]:
    if not numbers:
        return ()
    *ended, last = numbers
    return (*(Writer(*each) for each in zip(ended[0::2], ended[1::2], strict=True)), Writer(last))


def _string(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(value)
    return value


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(value)
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(value)
    return value
