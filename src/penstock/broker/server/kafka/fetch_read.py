"""What a client gets of one partition: which stretch of which file, and what must be known of it.

Readers that are filtered get the accepted entries only. What was rejected behind the last accepted one is passed over
by a batch without records (`skipping_batch`), or a client would ask for the same positions for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.filtered_read import Wanted, select
from penstock.broker.filters import FilterChain, FilterContext
from penstock.broker.log.partition import Slice
from penstock.broker.refusals import Refusal, Refused
from penstock.broker.server.kafka.codes import NONE, NUMBERS, code_of
from penstock.broker.server.kafka.fetch_answer import SMALL_BYTES, Piece, skipping_batch
from penstock.broker.server.kafka.fetch_parts import Fetches, Part
from penstock.broker.server.kafka.fetch_request import FetchRequest
from penstock.broker.server.outbox import Out, release
from penstock.errors import PenstockError, StorageError

if TYPE_CHECKING:
    from penstock.broker.partition_state import PartitionState
    from penstock.broker.server.kafka.dispatch import Context

OUT_OF_RANGE: Final = NUMBERS["OFFSET_OUT_OF_RANGE"]
FENCED: Final = NUMBERS["FENCED_LEADER_EPOCH"]
UNKNOWN_EPOCH: Final = NUMBERS["UNKNOWN_LEADER_EPOCH"]
UNKNOWN_ID: Final = NUMBERS["UNKNOWN_TOPIC_ID"]


class Found(NamedTuple):
    """What a client gets of a partition: the records, and the position behind them."""

    records: list[Out]
    next: int
    entries: int = 0
    rejected: int = 0
    """Positions before `next` that it does not get."""


class Reading:
    """One look at the partitions of a request. Runs on: the loop thread."""

    __slots__ = (
        *("_broker", "_committed", "_context", "_left", "_now", "_wish"),
        *("again_at", "failed", "has_judged", "has_more", "size"),
    )

    def __init__(self, context: Context, request: FetchRequest, now: float) -> None:
        self._context = context
        self._broker = context.broker
        self._committed = request.committed_only
        self._left = request.bytes_max
        self._wish = request.wish
        self._now = now
        self.size = 0
        """Bytes that were found so far."""
        self.failed = False
        """Whether a partition is answered with an error."""
        self.has_more = False
        """Whether the partition looked at last has something for the client, an error or entries, sent or not."""
        self.again_at: float | None = None
        """When an entry that filters put off is to be looked at again."""
        self.has_judged = False
        """Whether filters have judged entries: the client is told at once, or they would be judged again."""

    def read(self, part: Part) -> Piece:
        """What the client gets of this partition; slices in it are to be released."""
        self.has_more = True
        try:
            part.seen = state = self._find(part)
            code = self._fault(part, state)
            if not code:
                return self._piece(part, state)
        except PenstockError as error:
            is_id = isinstance(part.topic, bytes)
            unknown = is_id and isinstance(error, Refused) and error.reason is Refusal.UNKNOWN_TOPIC
            code = UNKNOWN_ID if unknown else code_of(error)
            if isinstance(error, StorageError) and part.seen is not None:
                name, number = part.seen.partition
                self._context.door.loop.tell(f"{name}-{number} cannot be read: {error}")
        self.failed = True
        return Piece(part.topic, part.number, code)

    def _find(self, part: Part) -> PartitionState:
        name = part.topic
        if isinstance(name, bytes):
            topic = self._context.door.topic_by_id(name)
            if topic is None:
                raise Refused(Refusal.UNKNOWN_TOPIC)
            name = topic.name
        return self._broker.partition(name, part.number)

    def _fault(self, part: Part, state: PartitionState) -> int:
        if part.leader_epoch >= 0 and part.leader_epoch != state.leader_epoch:
            return FENCED if part.leader_epoch < state.leader_epoch else UNKNOWN_EPOCH
        return NONE if state.log.start <= part.offset <= state.log.end else OUT_OF_RANGE

    def _piece(self, part: Part, state: PartitionState) -> Piece:
        log, offset, aborted = state.log, part.offset, None
        visible = log.visible
        stable = state.readable_end(True)
        end = stable if self._committed else visible
        self.has_more = offset < end
        found = Found([], offset)
        if self.has_more and (self._left > 0 or not self.size):
            found = self._found(part, state, end)
        records, reached, entries, rejected = found
        if self._committed:
            aborted = state.producers.aborted(offset, reached) if reached > offset else ()
        size = 0
        for item in records:
            size += item.size if isinstance(item, Slice) else len(item)
        self.size += size
        self._left -= size
        told = (part.topic, part.number, NONE, visible, stable, log.start, aborted, records, size)
        return Piece(*told, reached - offset - rejected, entries)

    def _found(self, part: Part, state: PartitionState, end: int) -> Found:
        bytes_max = max(0, min(part.bytes_max, self._left))
        group, chain = self._judges(part, state)
        if chain is not None:
            return self._filtered(part, state, Wanted(part.offset, bytes_max, end), chain, group)
        found = state.log.read(part.offset, bytes_max, end)
        if found is None:
            return Found([], part.offset)
        if self.size and found.size > bytes_max:
            found.release()
            return Found([], part.offset)
        return Found(_copied([found]), found.next, found.entries)

    def _judges(self, part: Part, state: PartitionState) -> tuple[str | None, FilterChain | None]:
        """The group that is read for, if that matters, and the filters that judge; None where nobody does."""
        filters, text, own = self._broker.filters, state.topic.settings.entry_filters, self._wish.filter
        if text is None and own is None and not filters.has_groups:
            return None, None
        group = self._group(part, state) if filters.has_groups else self._wish.group
        if own is not None and not state.log.has_claims(part.offset):
            own = None  # it could reject nothing, and each entry would be looked at for it
        return group, filters.chain(text, group, own)

    def _filtered(
        self, part: Part, state: PartitionState, wanted: Wanted, chain: FilterChain, group: str | None
    ) -> Found:
        key, offset = (part.topic, part.number), part.offset
        fetches: Fetches = self._context.session.fetches
        put_off = fetches.put_off.get(key)
        if put_off is not None and put_off[0] == offset and put_off[1] > self._now:
            self._again(put_off[1])
            return Found([], offset)
        context = self._context
        reader = FilterContext(state.topic.where.full, part.number, group, context.client_id or "", context.host)
        selection = select(chain, state.log, wanted, reader, state.stats.filters, self._now)
        fetches.put_off.pop(key, None)
        if selection.again_at is not None:
            fetches.put_off[key] = (selection.next, selection.again_at)
            self._again(selection.again_at)
        records = _copied(selection.slices)
        reached = selection.slices[-1].next if selection.slices else offset
        if selection.passed_over:
            records.append(skipping_batch(reached, selection.next))
        self.has_judged = self.has_judged or selection.next > offset
        given = sum(each.next - max(each.first, offset) for each in selection.slices)
        entries = sum(each.entries for each in selection.slices)
        return Found(records, selection.next, entries, selection.next - offset - given)

    def _again(self, when: float) -> None:
        if self.again_at is None or when < self.again_at:
            self.again_at = when

    def _group(self, part: Part, state: PartitionState) -> str | None:
        """The group for which this client says it reads, or does, if there is one and no other."""
        if self._wish.group is not None:
            return self._wish.group
        context = self._context
        client, topic = context.client_id or "", state.topic.name
        groups = self._broker.groups.groups_reading(client, context.host, topic, part.number)
        return next(iter(groups)) if len(groups) == 1 else None


def _copied(slices: Sequence[Slice]) -> list[Out]:
    """The same to be sent, the short ones copied, which costs less than sending them from their file."""
    try:
        records: list[Out] = [each if each.size > SMALL_BYTES else each.read() for each in slices]
    except BaseException:
        release(slices)
        raise
    release([each for each in slices if each.size <= SMALL_BYTES])
    return records
