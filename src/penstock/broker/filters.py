"""Entry filters: who may judge an entry before a reader gets it, and what becomes of the verdicts.

A filter sees an entry's header, with what the entry claims about its messages' properties, and who reads; never the
payload, unless it asks for it. The first verdict other than ACCEPT wins:

    ACCEPT      the reader gets it
    REJECT      the reader does not get it, and it counts as read
    RESCHEDULE  not now: the reader stops in front of it, and it is judged again later, until the bounds of
                `FilterLimits` are passed and the configured default takes the verdict's place

Which filters judge is a setting, `entry_filters`, a text such as `property(region in us, eu), mine` that
`filter_plugins.py` reads. It is set for the broker, a namespace or a topic, the nearest of which wins as with every
setting, and for a group or cursor, whose filters judge after the topic's. A reader may bring a property filter of its
own along, which judges last. A filter that throws, or answers with
something else, is counted and logged, and the configured default is its verdict. Control entries, which are the log's
own, are never judged.

    chain = broker.filters.chain(topic.settings.entry_filters, group)   # None: nobody judges, slices go as they are
    selection = select(chain, ...)                                      # filtered_read.py: what of a log a reader gets

Runs on: the loop thread. A slow filter holds up everybody.
"""

from __future__ import annotations

import enum
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from penstock.broker.filter_plugins import FilterPlugins, FilterSpec, read_specs
from penstock.errors import ConfigError
from penstock.wire.entry import EntryFlag, EntryHeader
from penstock.wire.property_filter import Match, PropertyCondition

if TYPE_CHECKING:
    from penstock.broker.settings import BrokerSettings

_log = logging.getLogger("penstock.broker.filters")

LOG_EVERY_S: Final = 60.0
CHAINS_MAX: Final = 10_000
OWN_MAX: Final = 1000
"""Chains with filters of readers' own that are remembered: their texts come from clients."""
OWN: Final = "(readers' own)"
"""The name under which those filters are counted."""
HELD_FACTOR: Final = 2
"""An entry whose bound is passed is remembered for as long again, for readers that ask for it once more."""


CONTROL: Final = int(EntryFlag.CONTROL)
"""As a number, since asking a flag what it holds takes long."""


class Verdict(enum.Enum):
    """What a filter says of an entry, for one reader."""

    ACCEPT = "accept"
    REJECT = "reject"
    RESCHEDULE = "reschedule"


class FilterContext(NamedTuple):
    """Who reads, and where."""

    topic: str
    """With tenant and namespace."""
    partition: int
    group: str | None
    """The group or cursor that is read for; None when that is not known."""
    consumer: str
    """The reader's own name; on Kafka's wire its client id."""
    host: str = ""


class FilteredEntry(Protocol):
    """An entry as a filter sees it."""

    @property
    def header(self) -> EntryHeader:
        """What is known of it unopened; `header.claim` tells of properties."""

    def payload(self) -> bytes:
        """The whole entry as it is stored, read from the log now. Only while it is being judged."""


class EntryFilter(Protocol):
    """What a plug-in is."""

    def filter_entry(self, entry: FilteredEntry, context: FilterContext) -> Verdict:
        """Judge one entry for one reader. Runs on: the broker's loop thread, so be quick and never wait."""


FilterFactory: TypeAlias = Callable[[str], EntryFilter]
"""Makes a filter of its configuration, the text in parentheses; ValueError when that makes no sense."""


class PropertyFilter:
    """The shipped filter: rejects entries none of whose messages match; mixed ones are for the reader to sort out."""

    __slots__ = ("condition",)

    def __init__(self, configuration: str) -> None:
        self.condition = PropertyCondition.parse(configuration)

    def filter_entry(self, entry: FilteredEntry, context: FilterContext) -> Verdict:
        """Judge by the entry's claim."""
        return Verdict.REJECT if self.condition.judge(entry.header.claim) is Match.NONE else Verdict.ACCEPT

    def __repr__(self) -> str:
        return f"PropertyFilter({str(self.condition)!r})"


@dataclass(frozen=True, slots=True)
class FilterLimits:
    """What bounds rescheduling, and what stands in for a verdict that cannot be had."""

    default: Verdict = Verdict.ACCEPT
    reschedules_max: int = 10
    reschedule_s_max: float = 30.0
    reschedule_delay_s: float = 1.0
    held_max: int = 10_000
    """Rescheduled entries that are remembered; one more counts as rescheduled often enough."""

    @classmethod
    def of(cls, settings: BrokerSettings) -> FilterLimits:
        """What a broker's settings say."""
        return cls(
            Verdict(settings.filter_default),
            settings.filter_reschedules_max,
            settings.filter_reschedule_max_ms / 1000,
            settings.filter_reschedule_delay_ms / 1000,
        )


@dataclass(slots=True)
class FilterCounts:
    """What became of entries that were judged: of a partition's, or by one filter."""

    accepted: int = 0
    rejected: int = 0
    rescheduled: int = 0
    failed: int = 0
    """Verdicts that could not be had: a filter threw, or said something else."""
    rejected_messages: int = 0
    rejected_bytes: int = 0

    def add(self, verdict: Verdict, header: EntryHeader) -> None:
        """One more verdict."""
        if verdict is Verdict.ACCEPT:
            self.accepted += 1
        elif verdict is Verdict.RESCHEDULE:
            self.rescheduled += 1
        else:
            self.rejected += 1
            self.rejected_messages += header.count
            self.rejected_bytes += header.size


class NamedFilter:
    """A filter with the text it was set by, and what it did; all that set the same text share it."""

    __slots__ = ("_filter", "_logged_at", "_unlogged", "counts", "text")

    def __init__(self, text: str, made: EntryFilter) -> None:
        self.text = text
        self.counts = FilterCounts()
        self._filter = made
        self._logged_at: float | None = None
        self._unlogged = 0

    def judge(self, entry: FilteredEntry, context: FilterContext, default: Verdict, now: float) -> tuple[Verdict, bool]:
        """Its verdict or the default, and whether it failed."""
        try:
            verdict = self._filter.filter_entry(entry, context)
            if not isinstance(verdict, Verdict):
                raise TypeError(f"a filter answers with a Verdict, not {verdict!r}")  # noqa: TRY301
        except Exception as error:  # noqa: BLE001
            self.counts.failed += 1
            self._tell(error, context, default, now)
            return default, True
        self.counts.add(verdict, entry.header)
        return verdict, False

    def _tell(self, error: Exception, context: FilterContext, default: Verdict, now: float) -> None:
        if self._logged_at is not None and 0 <= now - self._logged_at < LOG_EVERY_S:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more failures since the last one told)" if self._unlogged else ""
        self._logged_at, self._unlogged = now, 0
        where = f"{context.topic}-{context.partition}"
        message = "entry filter %s failed on an entry of %s; its verdict counts as %s%s"
        _log.warning(message, self.text, where, default.value, more, exc_info=error)

    def __repr__(self) -> str:
        return f"<NamedFilter {self.text}>"


class _Hold:
    __slots__ = ("count", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.count = 0


class Holds:
    """Entries that were rescheduled, per reader, and how often; forgotten some time after their bound is passed."""

    def __init__(self, limits: FilterLimits) -> None:
        self._limits = limits
        self._holds: OrderedDict[tuple[str, int, str, object], _Hold] = OrderedDict()

    def again_at(self, context: FilterContext, position: object, now: float) -> float | None:
        """When to judge the entry again; None when it was rescheduled often or long enough, or too many others are."""
        self._forget(now)
        reader = context.consumer if context.group is None else context.group
        key = (context.topic, context.partition, reader, position)
        hold = self._holds.get(key)
        if hold is None:
            if len(self._holds) >= self._limits.held_max:
                return None
            hold = self._holds[key] = _Hold(now)
        limits = self._limits
        if hold.count >= limits.reschedules_max or now - hold.since >= limits.reschedule_s_max:
            return None
        hold.count += 1
        return now + limits.reschedule_delay_s

    def _forget(self, now: float) -> None:
        kept_s = HELD_FACTOR * self._limits.reschedule_s_max
        while self._holds:
            key, hold = next(iter(self._holds.items()))
            if 0 <= now - hold.since < kept_s:
                return
            del self._holds[key]

    def __len__(self) -> int:
        return len(self._holds)


class Judged(NamedTuple):
    """The verdict of a chain; rescheduled entries are to be judged again at this time."""

    verdict: Verdict
    again_at: float | None = None


class FilterChain:
    """The filters that judge for readers of one topic and group, in order."""

    __slots__ = ("_filters", "_holds", "_limits")

    def __init__(self, filters: tuple[NamedFilter, ...], limits: FilterLimits, holds: Holds) -> None:
        self._filters = filters
        self._limits = limits
        self._holds = holds

    def judge(self, entry: FilteredEntry, context: FilterContext, counts: FilterCounts, now: float) -> Judged:
        """The verdict on an entry; `counts` are its partition's."""
        header = entry.header
        if int(header.flags) & CONTROL:
            return _ACCEPTED
        verdict, again_at = Verdict.ACCEPT, None
        for each in self._filters:
            verdict, failed = each.judge(entry, context, self._limits.default, now)
            counts.failed += failed
            if verdict is Verdict.RESCHEDULE:
                again_at = self._holds.again_at(context, header.first, now)
                verdict = Verdict.RESCHEDULE if again_at is not None else self._limits.default
            if verdict is not Verdict.ACCEPT:
                break
        counts.add(verdict, header)
        return Judged(verdict, again_at if verdict is Verdict.RESCHEDULE else None)

    def __repr__(self) -> str:
        return f"<FilterChain {', '.join(each.text for each in self._filters)}>"


_ACCEPTED = Judged(Verdict.ACCEPT)


class Filters:
    """The filters that are in use, and the chains made of them. Keeping settings is for others."""

    def __init__(
        self, limits: FilterLimits | None = None, given: Mapping[str, FilterFactory | EntryFilter] | None = None
    ) -> None:
        """`given` are filters known by name beside the installed plug-ins: a way to make one, or one that is made."""
        self._limits = limits or FilterLimits()
        self._plugins = FilterPlugins({"property": PropertyFilter, **(given or {})})
        self._holds = Holds(self._limits)
        self._groups: dict[str, str] = {}
        self._made: dict[str, NamedFilter] = {}
        self._chains: dict[tuple[str | None, str | None], FilterChain | None] = {}
        self._own: NamedFilter | None = None
        self._own_chains: dict[tuple[str | None, str | None, str], FilterChain | None] = {}

    def check(self, text: str) -> None:
        """ConfigError when the text cannot be understood, or a filter in it does not exist or cannot be made."""
        for spec in read_specs(text):
            if spec.text not in self._made:
                self._plugins.make(spec)

    def set_group(self, group: str, text: str | None) -> None:
        """Let these filters judge for readers of a group, after the topic's; None for none."""
        if text is None:
            self._groups.pop(group, None)
        else:
            self._groups[group] = text

    @property
    def has_groups(self) -> bool:
        """Whether anything is set for a group, so that it matters which one reads."""
        return bool(self._groups)

    def group(self, group: str) -> str | None:
        """What is set for a group."""
        return self._groups.get(group)

    def chain(self, topic_filters: str | None, group: str | None, own: str | None = None) -> FilterChain | None:
        """What judges for readers of a topic with these filters, and of this group; None when nobody does.

        `own` is a property filter that the reader brings along. One that cannot be read is passed over, since a reader
        judges what it gets anyway.
        """
        group_filters = self._groups.get(group) if group is not None else None
        if own is not None:
            return self._with_own((topic_filters, group_filters, own))
        if topic_filters is None and group_filters is None:
            return None
        key = (topic_filters, group_filters)
        if key not in self._chains:
            if len(self._chains) >= CHAINS_MAX:
                self._chains.clear()
                self._made.clear()
            self._chains[key] = self._chain(key)
        return self._chains[key]

    def all(self) -> Iterator[NamedFilter]:
        """Every filter that was in use, with its counts."""
        yield from self._made.values()
        if self._own is not None:
            yield self._own

    def _with_own(self, key: tuple[str | None, str | None, str]) -> FilterChain | None:
        if key not in self._own_chains:
            if len(self._own_chains) >= OWN_MAX:
                self._own_chains.clear()
            self._own_chains[key] = self._chain(key[:2], key[2])
        return self._own_chains[key]

    def _chain(self, texts: tuple[str | None, ...], own: str | None = None) -> FilterChain | None:
        specs = dict.fromkeys(spec for text in texts if text is not None for spec in self._readable(text))
        filters = [self._named(spec) for spec in specs]
        if own is not None and FilterSpec("property", own) not in specs:
            filters += self._of_reader(own)
        return FilterChain(tuple(filters), self._limits, self._holds) if filters else None

    def _of_reader(self, own: str) -> list[NamedFilter]:
        """A filter of a reader's own, which is counted together with all such."""
        try:
            named = NamedFilter(OWN, PropertyFilter(own))
        except ConfigError:
            return []
        if self._own is None:
            self._own = named
        named.counts = self._own.counts
        return [named]

    def _readable(self, text: str) -> list[FilterSpec]:
        try:
            return read_specs(text)
        except ConfigError:
            return [FilterSpec(text, "")]

    def _named(self, spec: FilterSpec) -> NamedFilter:
        named = self._made.get(spec.text)
        if named is None:
            try:
                made = self._plugins.make(spec)
            except ConfigError as error:
                made = _Unusable(error)
            named = self._made[spec.text] = NamedFilter(spec.text, made)
        return named

    def __repr__(self) -> str:
        return f"<Filters {', '.join(self._made) or 'none in use'}>"


class _Unusable:
    """Stands for a filter that was set in an earlier life and cannot be made in this one: each verdict fails."""

    def __init__(self, error: ConfigError) -> None:
        self._error = error

    def filter_entry(self, entry: FilteredEntry, context: FilterContext) -> Verdict:
        raise self._error
