from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker import filters as module
from penstock.broker.filter_plugins import ENTRY_POINTS, FilterSpec, read_specs
from penstock.broker.filters import (
    LOG_EVERY_S,
    EntryFilter,
    FilterChain,
    FilterContext,
    FilterCounts,
    FilteredEntry,
    FilterLimits,
    Filters,
    Verdict,
)
from penstock.broker.settings import BrokerSettings
from penstock.errors import ConfigError
from penstock.wire.compression import Codec
from penstock.wire.entry import NO_CLAIM, EntryFlag, EntryHeader, PropertyClaim

ACCEPT, REJECT, RESCHEDULE = Verdict
WHO = FilterContext("orders", 3, "billing", "client-1")


def header(first: int = 0, claim: PropertyClaim = NO_CLAIM, flags: EntryFlag = EntryFlag.NONE) -> EntryHeader:
    return EntryHeader(10, 200, Codec.NONE, first, first + 9, None, 0, None, -1, -1, flags, claim)


@dataclass
class Entry:
    header: EntryHeader = field(default_factory=header)
    reads: int = 0

    def payload(self) -> bytes:
        self.reads += 1
        return b"payload"


class Says:
    """A filter that says what it was told to, and remembers what it was asked."""

    def __init__(self, *verdicts: Verdict) -> None:
        self.verdicts = list(verdicts)
        self.asked: list[tuple[FilteredEntry, FilterContext]] = []

    def filter_entry(self, entry: FilteredEntry, context: FilterContext) -> Verdict:
        self.asked.append((entry, context))
        return self.verdicts.pop(0) if len(self.verdicts) > 1 else self.verdicts[0]


class Breaks:
    """A filter with a bug."""

    def __init__(self, what: object = None) -> None:
        self.what = what

    def filter_entry(self, entry: FilteredEntry, context: FilterContext) -> Verdict:
        if isinstance(self.what, Exception):
            raise self.what
        return self.what  # type: ignore[return-value]


def chain_of(filters: Filters, text: str, group: str | None = None) -> FilterChain:
    chain = filters.chain(text, group)
    assert chain is not None
    return chain


def judge_all(
    filters: Filters, text: str, entry: Entry | None = None, now: float = 0.0
) -> tuple[Verdict, FilterCounts]:
    counts = FilterCounts()
    return chain_of(filters, text).judge(entry or Entry(), WHO, counts, now).verdict, counts


def test_without_filters_nobody_judges() -> None:
    filters = Filters()
    filters.set_group("billing", "property(region = eu)")
    assert filters.chain(None, None) is None
    assert filters.chain(None, "another") is None
    assert filters.chain("none", None) is None


def test_filters_judge_in_order_and_the_first_other_verdict_wins() -> None:
    one, two, three = Says(ACCEPT), Says(REJECT), Says(ACCEPT)
    filters = Filters(given={"one": one, "two": two, "three": three})
    verdict, counts = judge_all(filters, "one, two, three")
    assert verdict is REJECT
    assert [len(each.asked) for each in (one, two, three)] == [1, 1, 0]
    assert counts == FilterCounts(rejected=1, rejected_messages=10, rejected_bytes=200)
    assert {each.text: each.counts.rejected for each in filters.all()} == {"one": 0, "two": 1, "three": 0}


def test_a_filter_sees_header_group_and_consumer_and_the_bytes_only_if_it_asks() -> None:
    says, entry = Says(ACCEPT), Entry()
    assert judge_all(Filters(given={"says": says}), "says", entry)[0] is ACCEPT
    assert says.asked == [(entry, WHO)]
    assert entry.reads == 0


def test_filters_of_a_group_judge_after_those_of_the_topic_and_the_same_one_judges_once() -> None:
    order: list[str] = []

    def named(name: str) -> Callable[[str], EntryFilter]:
        class Named:
            def filter_entry(self, entry: FilteredEntry, context: FilterContext) -> Verdict:
                order.append(name)
                return ACCEPT

        return lambda configuration: Named()

    filters = Filters(given={name: named(name) for name in ("one", "two", "three")})
    filters.set_group("billing", "three, one(x), two")
    chain_of(filters, "one, two", "billing").judge(Entry(), WHO, FilterCounts(), 0.0)
    assert order == ["one", "two", "three", "one"]
    filters.set_group("billing", None)
    order.clear()
    chain_of(filters, "one, two", "billing").judge(Entry(), WHO, FilterCounts(), 0.0)
    assert order == ["one", "two"]


def test_control_entries_are_never_judged() -> None:
    filters = Filters(given={"no": Says(REJECT)})
    verdict, counts = judge_all(filters, "no", Entry(header(flags=EntryFlag.CONTROL | EntryFlag.TRANSACTIONAL)))
    assert verdict is ACCEPT
    assert counts == FilterCounts()


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (PropertyClaim({"region": "eu"}), ACCEPT),
        (PropertyClaim({"region": "nl"}), REJECT),
        (PropertyClaim({"region": None}), REJECT),
        (PropertyClaim({}, {"region": frozenset(("eu", "nl"))}), ACCEPT),
        (PropertyClaim({}, {"region": frozenset(("se", "nl"))}), REJECT),
        (NO_CLAIM, ACCEPT),
    ],
)
def test_the_property_filter_rejects_only_entries_none_of_whose_messages_match(
    claim: PropertyClaim, verdict: Verdict
) -> None:
    entry = Entry(header(claim=claim))
    assert judge_all(Filters(), "property(region in us, eu)", entry)[0] is verdict
    assert entry.reads == 0


@pytest.mark.parametrize("broken", [Breaks(ValueError("no")), Breaks("accept"), Breaks(None)])
@pytest.mark.parametrize("default", [ACCEPT, REJECT])
def test_a_filter_that_fails_is_counted_and_its_verdict_is_the_default(
    broken: Breaks, default: Verdict, caplog: pytest.LogCaptureFixture
) -> None:
    after = Says(ACCEPT)
    filters = Filters(FilterLimits(default=default), {"broken": broken, "after": after})
    verdict, counts = judge_all(filters, "broken, after")
    assert verdict is default
    assert counts.failed == 1
    assert len(after.asked) == (default is ACCEPT)
    assert next(filters.all()).counts == FilterCounts(failed=1)
    assert f"entry filter broken failed on an entry of orders-3; its verdict counts as {default.value}" in caplog.text


def test_failures_are_logged_once_a_minute_with_how_many_there_were(caplog: pytest.LogCaptureFixture) -> None:
    filters = Filters(given={"broken": Breaks(ValueError("no"))})
    for now in (0.0, 1.0, LOG_EVERY_S - 1, LOG_EVERY_S, LOG_EVERY_S + 1):
        judge_all(filters, "broken", now=now)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 2
    assert "2 more failures" in told[1]


def test_a_filter_that_ends_the_process_is_not_held_back() -> None:
    class Ends:
        def filter_entry(self, entry: FilteredEntry, context: FilterContext) -> Verdict:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge_all(Filters(given={"ends": Ends()}), "ends")


def test_rescheduling_is_bounded_by_count() -> None:
    limits = FilterLimits(default=REJECT, reschedules_max=3, reschedule_s_max=1000.0, reschedule_delay_s=2.0)
    chain = chain_of(Filters(limits, {"later": Says(RESCHEDULE)}), "later")
    counts = FilterCounts()
    judged = [chain.judge(Entry(), WHO, counts, float(now)) for now in range(5)]
    assert judged == [(RESCHEDULE, 2.0), (RESCHEDULE, 3.0), (RESCHEDULE, 4.0), (REJECT, None), (REJECT, None)]
    assert (counts.rescheduled, counts.rejected) == (3, 2)


def test_rescheduling_is_bounded_by_time() -> None:
    limits = FilterLimits(reschedules_max=1000, reschedule_s_max=10.0)
    chain = chain_of(Filters(limits, {"later": Says(RESCHEDULE)}), "later")
    verdicts = [chain.judge(Entry(), WHO, FilterCounts(), now).verdict for now in (0.0, 9.9, 10.0, 19.9)]
    assert verdicts == [RESCHEDULE, RESCHEDULE, ACCEPT, ACCEPT]


def test_each_entry_and_each_group_has_bounds_of_its_own() -> None:
    chain = chain_of(Filters(FilterLimits(reschedules_max=1), {"later": Says(RESCHEDULE)}), "later")
    counts = FilterCounts()
    another_member = WHO._replace(consumer="client-2", host="127.0.0.2")
    assert chain.judge(Entry(), WHO, counts, 0.0).verdict is RESCHEDULE
    assert chain.judge(Entry(), another_member, counts, 0.0).verdict is ACCEPT
    assert chain.judge(Entry(header(first=10)), WHO, counts, 0.0).verdict is RESCHEDULE
    assert chain.judge(Entry(), WHO._replace(group="other"), counts, 0.0).verdict is RESCHEDULE
    assert chain.judge(Entry(), WHO._replace(group=None), counts, 0.0).verdict is RESCHEDULE


def test_what_stood_in_for_a_reschedule_is_judged_by_the_filters_that_follow() -> None:
    filters = Filters(FilterLimits(reschedules_max=0), {"later": Says(RESCHEDULE), "no": Says(REJECT)})
    assert judge_all(filters, "later, no")[0] is REJECT


def test_rescheduled_entries_are_forgotten_and_their_number_is_bounded() -> None:
    limits = FilterLimits(held_max=2, reschedule_s_max=10.0)
    filters = Filters(limits, {"later": Says(RESCHEDULE)})
    chain = chain_of(filters, "later")
    verdicts = [chain.judge(Entry(header(first)), WHO, FilterCounts(), 0.0).verdict for first in (0, 10, 20)]
    assert verdicts == [RESCHEDULE, RESCHEDULE, ACCEPT]
    assert chain.judge(Entry(header(20)), WHO, FilterCounts(), 20.0).verdict is RESCHEDULE


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("mine", [("mine", "")]),
        ("mine()", [("mine", "")]),
        (" one , two( a, (b) ) ", [("one", ""), ("two", "a, (b)")]),
        ("property(region in us, eu; version = 1), x", [("property", "region in us, eu; version = 1"), ("x", "")]),
        ("""p(a = "x)" ), q('(')""", [("p", 'a = "x)"'), ("q", "'('")]),
        ("p(it's)", [("p", "it's")]),
        ("none", []),
        ("none, mine", [("none", ""), ("mine", "")]),
    ],
)
def test_filters_are_named_by_a_text(text: str, specs: list[tuple[str, str]]) -> None:
    assert read_specs(text) == specs


def test_a_filter_is_spelled_as_it_was_named() -> None:
    assert [FilterSpec("p", "a = 1").text, FilterSpec("p", "").text] == ["p(a = 1)", "p"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "at the end: expected the name of a filter"),
        ("one,", "at the end: expected the name of a filter"),
        ("one two", "character 5 ('two'): expected a comma"),
        ("one(two", "character 4 ('(two'): this parenthesis is not closed"),
        ("one)", "expected a comma"),
        ("1one", "expected the name of a filter"),
        ("proprety(a = 1)", "there is no entry filter 'proprety'; property?"),
        ("zzz", "there is no entry filter 'zzz'; known are made, property, raises, wrong"),
        ("property", "entry filter property: a property filter has at least one clause"),
        ("property(a in)", "entry filter property: property filter, at its end: expected a value"),
        ("made(x)", "entry filter made was given ready made and takes no configuration"),
        ("wrong", "entry filter wrong has no method filter_entry"),
        ("raises(x)", "entry filter raises cannot be made of 'x': ZeroDivisionError"),
    ],
)
def test_a_text_that_names_no_filters_is_refused(text: str, told: str) -> None:
    given = {"made": Says(ACCEPT), "wrong": lambda configuration: object(), "raises": lambda configuration: 1 / 0}
    filters = Filters(given=given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        filters.check(text)
    assert told in str(caught.value)


@given(st.text() | st.text(alphabet="ab(),'\"\\ ", max_size=30))
def test_whatever_is_written_names_filters_or_is_told(text: str) -> None:
    try:
        specs = read_specs(text)
    except ConfigError:
        return
    assert read_specs(", ".join(spec.text for spec in specs) or "none") == specs


def test_a_good_text_is_taken() -> None:
    Filters(given={"mine": Says(ACCEPT)}).check("property(region in us, eu), mine")


@pytest.mark.parametrize("text", ["gone(x)", "((("])
def test_what_was_set_in_an_earlier_life_and_is_gone_fails_at_each_verdict(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    verdict, counts = judge_all(Filters(FilterLimits(default=REJECT)), text)
    assert verdict is REJECT
    assert counts.failed == 1
    assert "failed on an entry" in caplog.text


class Plugin:
    def __init__(self, configuration: str) -> None:
        self.configuration = configuration

    def filter_entry(self, entry: FilteredEntry, context: FilterContext) -> Verdict:
        return REJECT if self.configuration == "all" else ACCEPT


def test_plugins_are_found_by_their_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        metadata.EntryPoint("plugin", f"{__name__}:Plugin", ENTRY_POINTS),
        metadata.EntryPoint("lost", "no_such_module:Plugin", ENTRY_POINTS),
    ]

    def entry_points(*, group: str) -> list[metadata.EntryPoint]:
        assert group == "penstock.entry_filters"
        return points

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    filters = Filters()
    assert judge_all(filters, "plugin(all)")[0] is REJECT
    assert judge_all(filters, "plugin")[0] is ACCEPT
    with pytest.raises(ConfigError, match=r"entry filter lost \(no_such_module:Plugin\) cannot be loaded"):
        filters.check("lost")


def test_chains_are_kept_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHAINS_MAX", 3)
    filters = Filters()
    first = filters.chain("property(a = 0)", None)
    assert filters.chain("property(a = 0)", None) is first
    for number in range(1, 5):
        filters.chain(f"property(a = {number})", None)
    assert len(list(filters.all())) <= 3


def test_limits_are_what_the_broker_s_settings_say(tmp_path: Path) -> None:
    assert FilterLimits.of(BrokerSettings(tmp_path)) == FilterLimits()
    settings = BrokerSettings(tmp_path, filter_default="reject", filter_reschedule_max_ms=1500)
    assert FilterLimits.of(settings) == FilterLimits(default=REJECT, reschedule_s_max=1.5)


# Filters that readers bring along


def test_a_readers_own_filter_judges_last_and_is_counted_with_all_such() -> None:
    filters = Filters(given={"mine": Says(ACCEPT)})
    counts = FilterCounts()
    for own, verdict in (("region = eu", ACCEPT), ("region = us", REJECT)):
        chain = filters.chain("mine", None, own)
        assert chain is not None
        judged = chain.judge(Entry(header(claim=PropertyClaim({"region": "eu"}, {}))), WHO, counts, 0.0)
        assert judged.verdict is verdict
    assert (counts.accepted, counts.rejected) == (1, 1)
    told = {each.text: (each.counts.accepted, each.counts.rejected) for each in filters.all()}
    assert told == {"mine": (2, 0), module.OWN: (1, 1)}


def test_a_readers_own_filter_that_the_group_has_too_judges_once() -> None:
    filters = Filters()
    filters.set_group("billing", "property(region = eu)")
    chain = filters.chain(None, "billing", "region = eu")
    assert repr(chain) == "<FilterChain property(region = eu)>"


@pytest.mark.parametrize("own", ["", "region ==", "x" * 5000])
def test_a_readers_own_filter_that_cannot_be_read_is_passed_over(own: str) -> None:
    filters = Filters(given={"mine": Says(REJECT)})
    assert filters.chain(None, None, own) is None
    assert repr(filters.chain("mine", None, own)) == "<FilterChain mine>"


def test_of_readers_own_filters_a_bounded_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OWN_MAX", 10)
    filters = Filters()
    for number in range(100):
        filters.chain(None, None, f"region = {number}")
        assert len(filters._own_chains) <= 10
    assert filters.chain(None, None, "region = 99") is filters.chain(None, None, "region = 99")
