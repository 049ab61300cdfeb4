"""The partitions that a client fetches from: those of one request, or of a session that many requests share.

In a session (KIP-227) a client names only what has changed since its last request, and is told only of what has news.
The session waits in each of its partitions, so that a request looks at those that have something and at no others:

    ready      may have something to tell: just asked for, had something the last time, or more has come since
    not ready  had nothing when last looked at

A session belongs to its connection and ends with it; a client that comes back on another one is told that its session
is not known and begins anew, as clients do then anyway. When all sessions together hold too many partitions, no more
are begun, and clients name all their partitions each time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from penstock.broker.server.kafka.codes import NUMBERS
from penstock.broker.server.kafka.fetch_request import FINAL_EPOCH, NO_SESSION, AskedPartition, FetchRequest, TopicKey

if TYPE_CHECKING:
    from penstock.broker.partition_state import PartitionState

FIRST_EPOCH: Final = 0
EPOCH_MAX: Final = (1 << 31) - 1
SESSION_PARTS_MAX: Final = 200_000
NOT_TOLD: Final = -2


class Waiting(Protocol):
    """A request that waits."""

    def wake(self) -> None:
        """There may be enough to answer it with."""


class Part:
    """One partition as a client fetches from it. Called when more can be read, or when the partition goes."""

    __slots__ = ("_waits_in", "bytes_max", "leader_epoch", "number", "offset", "owner", "seen", "told", "topic")

    def __init__(self, asked: AskedPartition, owner: Parts) -> None:
        self.topic, self.number, self.leader_epoch, self.offset, self.bytes_max = asked
        self.owner = owner
        self.seen: PartitionState | None = None
        """The partition as it was last looked at."""
        self._waits_in: PartitionState | None = None
        self.told = (NOT_TOLD, NOT_TOLD)
        """What the client knows of where the log ends and starts."""

    def __call__(self) -> None:
        """More can be read."""
        self.owner.woken(self)

    def __repr__(self) -> str:
        return f"<Part {self.topic!r}-{self.number} from {self.offset}>"

    def wait(self) -> None:
        """Be called when more can be read where it was last looked at."""
        if self._waits_in is not self.seen:
            self.unwait()
            self._waits_in = self.seen
            if self.seen is not None:
                self.seen.wait(self)

    def unwait(self) -> None:
        """Be called no more."""
        if self._waits_in is not None:
            self._waits_in.unwait(self)
            self._waits_in = None


class OneRequest:
    """The partitions of one request, each of which is told of."""

    __slots__ = ("_parts", "_waiting")

    id: Final = NO_SESSION
    is_incremental: Final = False

    def __init__(self, asked: Iterable[AskedPartition]) -> None:
        self._parts = [Part(each, self) for each in asked]
        self._waiting: Waiting | None = None

    def __len__(self) -> int:
        return len(self._parts)

    def candidates(self) -> Sequence[Part]:
        """Those to look at."""
        return self._parts

    def looked(self, part: Part, has_news: bool) -> None:
        """A partition was looked at."""

    def sent(self, part: Part) -> None:
        """Something of a partition is sent."""

    def wait(self, waiting: Waiting) -> None:
        """Wake this when more can be read from any partition."""
        self._waiting = waiting
        for part in self._parts:
            part.wait()

    def woken(self, part: Part) -> None:
        """More can be read from a partition."""
        if self._waiting is not None:
            self._waiting.wake()

    def finish(self) -> None:
        """The request is answered, or nobody wants the answer any more."""
        if self._waiting is None:
            return
        self._waiting = None
        for part in self._parts:
            part.unwait()


class FetchSession:
    """The partitions of a session."""

    __slots__ = ("_parts", "_ready", "_waiting", "epoch", "id", "is_incremental")

    def __init__(self, session_id: int, asked: Iterable[AskedPartition]) -> None:
        self.id = session_id
        self.epoch = FIRST_EPOCH + 1
        self.is_incremental = False
        """Whether only news are told; not so in the answer to its first request."""
        self._waiting: Waiting | None = None
        self._parts: dict[tuple[TopicKey, int], Part] = {}
        self._ready: dict[Part, None] = {}
        self._take(asked)

    def __len__(self) -> int:
        return len(self._parts)

    def __repr__(self) -> str:
        return f"<FetchSession {self.id} at {self.epoch}, {len(self._ready)} of {len(self._parts)} ready>"

    @property
    def uses_ids(self) -> bool | None:
        """Whether its topics are named by their ids; None without any."""
        return next((isinstance(topic, bytes) for topic, _number in self._parts), None)

    def update(self, request: FetchRequest) -> None:
        """The next request of the session: what it adds, changes and forgets."""
        self.epoch = self.epoch + 1 if self.epoch < EPOCH_MAX else FIRST_EPOCH + 1
        self.is_incremental = True
        self._take(request.partitions)
        for key in request.forgotten:
            part = self._parts.pop(key, None)
            if part is not None:
                part.unwait()
                self._ready.pop(part, None)

    def _take(self, asked: Iterable[AskedPartition]) -> None:
        for each in asked:
            part = self._parts.get((each.topic, each.number))
            if part is None:
                part = self._parts[each.topic, each.number] = Part(each, self)
            else:
                _topic, _number, part.leader_epoch, part.offset, part.bytes_max = each
            self._ready[part] = None

    def candidates(self) -> Sequence[Part]:
        """Those to look at, whoever had something last at the end."""
        return list(self._ready if self.is_incremental else self._parts.values())

    def looked(self, part: Part, has_news: bool) -> None:
        """A partition was looked at; with news it is looked at again, even if nothing comes meanwhile."""
        if not has_news:
            self._ready.pop(part, None)
        part.wait()

    def sent(self, part: Part) -> None:
        """Something of a partition is sent: others go first the next time."""
        self._ready.pop(part, None)
        self._ready[part] = None

    def wait(self, waiting: Waiting) -> None:
        """Wake this when more can be read from any partition."""
        self._waiting = waiting

    def woken(self, part: Part) -> None:
        """More can be read from a partition."""
        self._ready[part] = None
        if self._waiting is not None:
            self._waiting.wake()

    def finish(self) -> None:
        """A request is answered, or nobody wants its answer any more; the session goes on."""
        self._waiting = None

    def close(self) -> None:
        """Nothing is wanted any more."""
        self.finish()
        for part in self._parts.values():
            part.unwait()
        self._parts.clear()
        self._ready.clear()


Parts: TypeAlias = OneRequest | FetchSession


class SessionRoom:
    """How many partitions all sessions hold, and may."""

    __slots__ = ("parts_max", "used")

    def __init__(self, parts_max: int = SESSION_PARTS_MAX) -> None:
        self.parts_max = parts_max
        self.used = 0


class Fetches:
    """What is remembered for one connection: its session, and when entries that filters put off are looked at again."""

    __slots__ = ("_counted", "_room", "put_off", "session")

    def __init__(self, room: SessionRoom) -> None:
        self.session: FetchSession | None = None
        self.put_off: dict[tuple[TopicKey, int], tuple[int, float]] = {}
        """By partition: a position, and when the entry there is judged again."""
        self._room = room
        self._counted = 0

    def find(self, request: FetchRequest, new_id: Callable[[], int] | None = None) -> Parts | int:
        """The partitions that a request is about, or the code that it is refused with."""
        if request.session_epoch in (FINAL_EPOCH, FIRST_EPOCH):
            self.close()
            if request.session_epoch == FINAL_EPOCH or not self._has_room(len(request.partitions)):
                return OneRequest(request.partitions)
            self.session = FetchSession((new_id or _new_id)(), request.partitions)
            self._count()
            return self.session
        session = self.session
        if session is None or session.id != request.session_id:
            return NUMBERS["FETCH_SESSION_ID_NOT_FOUND"]
        if session.epoch != request.session_epoch:
            return NUMBERS["INVALID_FETCH_SESSION_EPOCH"]
        if any(
            isinstance(each.topic, bytes) is not session.uses_ids for each in request.partitions[:1] if len(session)
        ):
            return NUMBERS["FETCH_SESSION_TOPIC_ID_ERROR"]
        session.update(request)
        self._count()
        return session

    def close(self) -> None:
        """The session ends."""
        if self.session is not None:
            self.session.close()
            self._count()
            self.session = None

    def _has_room(self, parts: int) -> bool:
        return 0 < parts <= self._room.parts_max - self._room.used

    def _count(self) -> None:
        count = 0 if self.session is None else len(self.session)
        self._room.used += count - self._counted
        self._counted = count


def _new_id() -> int:
    return random.randint(1, EPOCH_MAX)  # noqa: S311  # not a secret: it is good on its own connection only
