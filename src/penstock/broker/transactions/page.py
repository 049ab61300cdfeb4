"""One transactional id on paper: who has it, what its transaction holds, and what may become of it.

    EMPTY ──> ONGOING ──> PREPARE_COMMIT ──> COMPLETE_COMMIT      EMPTY and COMPLETE_* ──> EMPTY, ONGOING, DEAD
                 └──────> PREPARE_ABORT ───> COMPLETE_ABORT                            ──> PREPARE_ABORT, of nothing

EMPTY             somebody has the id, and has begun nothing
ONGOING           partitions or groups belong to the transaction; it has a deadline
PREPARE_*         it is decided: whatever happens, it will end so
COMPLETE_*        it has ended so in every partition and group
DEAD              unused for long, and about to be forgotten

PREPARE_EPOCH_FENCE is a word of Kafka's for the moment before a broker aborts on its own; here it never lasts.

An identity is a producer's id and an epoch. Each step that gives the id to somebody, or takes a transaction away from
its owner, raises the epoch; `last` is the identity before, where whoever had it may ask again for the answer that it
missed. Epochs are few: before the largest is given there is a new producer id, so that one is left to fence with.

How a transaction ends depends on what its client knows (`renews`): its identity stays, or it is told another each time.
Who has that other way is always told which end a request means that is sent again:

| state      | asked by `last`                    | by who has the id, `renews`   | by who has it, and it stays   |
|------------|------------------------------------|-------------------------------|-------------------------------|
| EMPTY      | FENCED                             | abort: of nothing; commit: no | no                            |
| ONGOING    | FENCED                             | it is ended                   | it is ended                   |
| PREPARE_*  | the same way: waits; else: no      | FENCED                        | the same way: waits; else: no |
| COMPLETE_* | the same way: told again; else: no | abort: of nothing; commit: no | the same way: told; else: no  |

A page is never changed, only replaced by another. Must never ask a clock. Runs on: the loop thread; packed on the
commit thread.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.broker.refusals import Refusal, Refused
from penstock.errors import DecodeError
from penstock.wire.protocol import Identity, Partition

VERSION: Final = 1
EPOCH_MAX: Final = (1 << 15) - 1
NOBODY: Final = -1


class State(enum.Enum):
    """Where a transaction is; the values are what tools call them."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    DEAD = "Dead"


_AT_REST: Final = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
_DECIDED: Final = {State.PREPARE_COMMIT: State.COMPLETE_COMMIT, State.PREPARE_ABORT: State.COMPLETE_ABORT}

TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.EMPTY: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.ONGOING: frozenset({State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT}),
    State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT}),
    State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.COMPLETE_ABORT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.PREPARE_EPOCH_FENCE: frozenset(),
    State.DEAD: frozenset(),
}


class EndVerdict(enum.Enum):
    """What is to be done about somebody who wants a transaction ended."""

    BEGIN = "end it"
    WAIT = "it is being ended so"
    TELL = "it was ended so"


@dataclass(frozen=True, slots=True)
class Page:
    """What is written down of one transactional id."""

    transactional_id: str
    producer: int
    epoch: int = NOBODY
    last: Identity | None = None
    """The identity before; who had it is told the present one if it asks again."""
    next_producer: int = NOBODY
    """The producer id to go on with after the end, when epochs are used up."""
    timeout_ms: int = 0
    state: State = State.EMPTY
    partitions: frozenset[Partition] = frozenset()
    groups: frozenset[str] = frozenset()
    began_ms: int = -1
    """When the transaction began, by the wall clock."""
    changed_ms: int = -1

    @property
    def identity(self) -> Identity:
        """Who has the id."""
        return Identity(self.producer, self.epoch)

    @property
    def is_open(self) -> bool:
        """Whether a transaction has begun and is not decided."""
        return self.state is State.ONGOING

    @property
    def is_decided(self) -> bool:
        """Whether a transaction is being ended."""
        return self.state in _DECIDED

    @property
    def is_at_rest(self) -> bool:
        """Whether there is no transaction."""
        return self.state in _AT_REST

    @property
    def commits(self) -> bool:
        """Whether the decision was to commit."""
        return self.state is State.PREPARE_COMMIT

    @property
    def is_exhausted(self) -> bool:
        """Whether the next identity needs another producer id."""
        return self.epoch >= EPOCH_MAX - 1

    def _moved(self, state: State, now_ms: int, **changes: Any) -> Page:
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"{self.transactional_id}: from {self.state.value} to {state.value}; {self!r}")
        return replace(self, state=state, changed_ms=now_ms, **changes)

    # Who has the id

    def check_owner(self, identity: Identity) -> None:
        """Refuse who has not the id."""
        if identity.producer != self.producer:
            raise Refused(
                Refusal.WRONG_PRODUCER_ID, self._about(f"belongs to another producer than {identity.producer}")
            )
        if identity.epoch != self.epoch:
            raise Refused(
                Refusal.FENCED, self._about(f"was taken by another instance: epoch {identity.epoch} is not its own")
            )

    def check_current(self, current: Identity | None) -> None:
        """Refuse who says that it has the id, and has not; a new page believes everybody."""
        if current is None or self.epoch < 0 or current == self.identity or (current == self.last and not self.is_open):
            return
        raise Refused(Refusal.FENCED, self._about(f"was taken by another instance: {current} is not its own"))

    def identified(self, timeout_ms: int, current: Identity | None, fresh: int, now_ms: int) -> Page:
        """Another identity for a page at rest; `fresh` is the producer id to take if epochs are used up.

        Who asks again gets the one that it missed.
        """
        identity, last = Identity(self.producer, self.epoch + 1), None
        if current is not None and self.epoch >= 0:
            identity, last = (self.identity, self.last) if current == self.last else (identity, self.identity)
        if identity.epoch >= EPOCH_MAX:
            identity = Identity(fresh, 0)
        return self._moved(
            State.EMPTY,
            now_ms,
            producer=identity.producer,
            epoch=identity.epoch,
            last=last,
            timeout_ms=timeout_ms,
            began_ms=-1,
        )

    # What belongs to the transaction

    def enlisted(self, partitions: Iterable[Partition], groups: Iterable[str], now_ms: int) -> Page:
        """With these in the transaction, which begins if it has not."""
        return self._moved(
            State.ONGOING,
            now_ms,
            partitions=self.partitions.union(partitions),
            groups=self.groups.union(groups),
            began_ms=self.began_ms if self.is_open else now_ms,
        )

    # How it ends

    def judge_end(self, identity: Identity, commit: bool, renews: bool) -> EndVerdict:
        """What becomes of somebody who wants it ended; Refused when that cannot be."""
        if renews and identity == self.last and not self.is_open and self.state is not State.EMPTY:
            return self._judge_again(commit)
        self.check_owner(identity)
        if not renews:
            return EndVerdict.BEGIN if self.is_open else self._judge_again(commit)
        if self.is_decided:
            raise Refused(Refusal.FENCED, self._about("is being taken from whoever had it"))
        if self.is_open or not commit:
            return EndVerdict.BEGIN
        raise self._cannot_end(commit)

    def _judge_again(self, commit: bool) -> EndVerdict:
        wanted = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
        if self.state is wanted:
            return EndVerdict.WAIT
        if self.state is _DECIDED[wanted]:
            return EndVerdict.TELL
        raise self._cannot_end(commit)

    def _cannot_end(self, commit: bool) -> Refused:
        text = f"has nothing to {'commit' if commit else 'abort'}: its transaction is {self.state.value}"
        return Refused(Refusal.BAD_TRANSACTION_STATE, self._about(text))

    def prepared(self, commit: bool, renews: bool, next_producer: int, now_ms: int) -> Page:
        """Decided; `next_producer` is the one to go on with if the identity changes and epochs are used up."""
        state = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
        began_ms = self.began_ms if self.is_open else now_ms
        if not renews:
            return self._moved(state, now_ms, began_ms=began_ms)
        next_producer = next_producer if self.is_exhausted else NOBODY
        changes = {"epoch": self.epoch + 1, "last": self.identity, "next_producer": next_producer}
        return self._moved(state, now_ms, began_ms=began_ms, **changes)

    def completed(self, now_ms: int) -> Page:
        """Ended everywhere."""
        state = _DECIDED[self.state]
        changes: dict[str, Any] = {"partitions": frozenset(), "groups": frozenset(), "next_producer": NOBODY}
        if self.next_producer != NOBODY:
            changes |= {"producer": self.next_producer, "epoch": 0}
        return self._moved(state, now_ms, **changes)

    def dead(self, now_ms: int) -> Page:
        """About to be forgotten."""
        return self._moved(State.DEAD, now_ms)

    def _about(self, text: str) -> str:
        return f"transactional id {self.transactional_id} {text}"

    # On paper

    def pack(self) -> bytes:
        """As the store keeps it: JSON, partitions by topic."""
        topics: dict[str, list[int]] = {}
        for topic, number in sorted(self.partitions):
            topics.setdefault(topic, []).append(number)
        last = None if self.last is None else [self.last.producer, self.last.epoch]
        values = {
            "version": VERSION,
            "producer": self.producer,
            "epoch": self.epoch,
            "last": last,
            "next_producer": self.next_producer,
            "timeout_ms": self.timeout_ms,
            "state": self.state.value,
            "topics": topics,
            "groups": sorted(self.groups),
            "began_ms": self.began_ms,
            "changed_ms": self.changed_ms,
        }
        return json.dumps(values, separators=(",", ":")).encode()


def unpack(transactional_id: str, state: bytes) -> Page:
    """A page as it was packed; DecodeError when it was not."""
    try:
        values = json.loads(state)
        version = values.pop("version")
        if version != VERSION:
            raise DecodeError(0, "version", str(VERSION), version)
        last, topics = values.pop("last"), values.pop("topics")
        return Page(
            transactional_id,
            last=None if last is None else Identity(*last),
            state=State(values.pop("state")),
            partitions=frozenset(Partition(topic, number) for topic, numbers in topics.items() for number in numbers),
            groups=frozenset(values.pop("groups")),
            **values,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DecodeError(0, f"transactional id {transactional_id}", "a page that was packed", str(error)) from error
