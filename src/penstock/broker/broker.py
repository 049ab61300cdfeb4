"""The broker: topics, partitions, cursors, groups and transactions together, without a protocol.

How a server drives it, on its one loop thread:

    broker = Broker(settings, formats, clock.monotonic(), clock.wall_ms())
    watch(broker.fileno(), broker.finish)      # readable when a round is over: outcomes are told
    each turn:
        ... handle requests: broker.partition(...).publish(...), broker.topics.create(...), ...
        due = broker.turn(now, now_ms)         # last: housekeeping if due, then the turn's round begins
    broker.close()                             # makes everything durable, and the next start quick

What was appended or handed to the store in one turn is one round of the commit thread, which begins when `turn` (or
`commit`) is called: without it nothing becomes durable. Who waits for more to read is called there too.

Start: the folder is locked, the journal replayed, the store read; what an earlier life left half done is mended (rows
and files without their topic go, transactions that were being ended are ended). Partitions are opened when asked for.

Must never read a clock, sleep, or know a protocol. Runs on: the loop thread.
"""

from __future__ import annotations

import base64
import sqlite3
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack

from penstock.broker.cursor import Cursors
from penstock.broker.filters import EntryFilter, FilterFactory, FilterLimits, Filters
from penstock.broker.groups.coordinator import Groups
from penstock.broker.groups.questions import Moment
from penstock.broker.groups.settings import GroupSettings
from penstock.broker.housekeeping import Housekeeping
from penstock.broker.log.commit import Committer, Done, FsyncPolicy
from penstock.broker.log.disk import Disk, SystemDisk
from penstock.broker.log.partition import PartitionLog
from penstock.broker.log.store import LogSettings, LogStore
from penstock.broker.partition_state import PartitionState
from penstock.broker.partitions import Partitions
from penstock.broker.refusals import Refusal, Refused
from penstock.broker.rounds import Rounds
from penstock.broker.settings import BrokerSettings
from penstock.broker.stats import Stats
from penstock.broker.store import Scope, Store, Work, put_fact
from penstock.broker.topics import Topic, Topics
from penstock.broker.transactions import Transactions
from penstock.errors import ConfigError
from penstock.wire.entry import EntryFormat

CLUSTER_ID = "cluster_id"
ENDING_ROUNDS = 4
"""Rounds that the end of a transaction takes, and one more."""


class Broker:
    """All of it."""

    transactions: Transactions

    def __init__(
        self,
        settings: BrokerSettings,
        formats: Sequence[EntryFormat],
        now: float,
        now_ms: int,
        *,
        disk: Disk | None = None,
        groups: GroupSettings | None = None,
        filters: Mapping[str, FilterFactory | EntryFilter] | None = None,
        threaded: bool = True,
    ) -> None:
        """Open the folder; errors are those of `LogStore` and `Store`, and ConfigError for filters that cannot be had.

        Markers are written in the first format.
        `filters` are entry filters that can be set by these names beside the installed ones.
        With `threaded=False` there is no commit thread: `committer.run_round()` does its work, for tests.
        """
        self.settings = settings
        self.now, self.now_ms = now, now_ms
        self.filters = Filters(FilterLimits.of(settings), filters)
        if settings.topics.get("entry_filters") is not None:
            self.filters.check(str(settings.topics["entry_filters"]))
        self.stats = Stats()
        self._advanced: dict[PartitionState, None] = {}
        with ExitStack() as undo:
            policy = FsyncPolicy(settings.fsync)
            self.committer = Committer(policy, self._connect, threaded=threaded)
            self.rounds = Rounds(self.committer)
            undo.callback(self.committer.close)
            self.logs = LogStore(settings.folder, disk or SystemDisk(), formats, LogSettings(), self.committer)
            undo.callback(self.logs.close)
            self.store = Store(settings.folder)
            undo.callback(self.store.close)
            undo.callback(self.rounds.stop)
            self.store.attach(self.rounds)
            self.store.sweep()
            self._load(formats, groups or GroupSettings())
            self.cluster_id = self._mend()
            self._end_transactions()
            undo.pop_all()

    def _load(self, formats: Sequence[EntryFormat], groups: GroupSettings) -> None:
        settings = self.settings
        self.topics = Topics(self.store, settings)
        self.topics.checks["entry_filters"] = self._check_filters
        self.topics.listeners.append(self)
        self.partitions = Partitions(
            *(self.topics, self.logs, self.store, self.stats, formats[0], settings), owner=self
        )
        self.cursors = Cursors(self.store, self.topics, settings, self._log_of)
        self._housekeeping = Housekeeping(self.topics, self.partitions, self.cursors, self.logs, settings)
        self.groups = Groups(self.store, self.topics, groups, Moment(self.now, self.now_ms))
        self.topics.listeners.append(self.groups)
        self.transactions = Transactions(self.store, self, settings, self.groups.offsets)
        self.admit = self.transactions.admit
        self.partitions.opened = self._adopt
        for scope in self.topics.scopes():
            if scope.kind == "group":
                self._set_group_filters(scope.name)

    def _mend(self) -> str:
        """Sweep what belongs to no topic; returns the cluster's id, made when there is none."""
        for topic_id in self.logs.topic_ids():
            if self.topics.by_id(topic_id) is None:
                self.logs.delete(topic_id)
                self.rounds.submit()
        cluster_id = self.store.fact(CLUSTER_ID)
        if cluster_id is None:
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            made = cluster_id
            self.store.write(lambda db: put_fact(db, CLUSTER_ID, made))
        return cluster_id

    def _end_transactions(self) -> None:
        """End what was being ended before anybody can see it by halves; what cannot be ended now is tried again."""
        self.transactions.start(self.now, self.now_ms)
        self.commit()
        for _ in range(ENDING_ROUNDS):
            if self.transactions.is_ending:
                self.committer.wait(self.committer.submit())
                self.commit()

    def _connect(self) -> sqlite3.Connection:
        """The commit thread's way to the store. Runs on: the commit thread."""
        if not hasattr(self, "store"):
            raise sqlite3.OperationalError("there is no store: the broker could not be started")
        return self.store.connect()

    def __repr__(self) -> str:
        return f"<Broker {self.settings.folder}, {self.topics!r}, {len(self.partitions)} open>"

    # What servers and coordinators ask

    def partition(self, topic: str, number: int) -> PartitionState:
        """A partition, opened if it is not open; Refused (UNKNOWN_TOPIC, UNKNOWN_PARTITION, STORAGE_*)."""
        return self.partitions.get(topic, number, self.now, self.now_ms)

    def has_partition(self, topic: str, number: int) -> bool:
        """Whether there is such a partition, without opening it."""
        found = self.topics.find(topic)
        return found is not None and 0 <= number < found.partitions

    def write(self, work: Work | None, done: Done) -> None:
        """Have work done in the next round; all that was appended before is durable when `done` is told None."""
        if work is None:
            self.rounds.submit(None, done)
        else:
            self.store.write(work, done)

    # The loop

    def fileno(self) -> int:
        """Readable when `finish` has something to do."""
        return self.committer.fileno()

    def finish(self) -> None:
        """Tell everybody what the commit thread has done."""
        self.committer.finish()

    def turn(self, now: float, now_ms: int) -> float | None:
        """A bounded piece of what is due, then `commit`; returns when to be called again at the latest."""
        self.now, self.now_ms = now, now_ms
        dues = (
            self._housekeeping.turn(now, now_ms),
            self.groups.turn(now, now_ms),
            self.transactions.turn(now, now_ms),
        )
        self.commit()
        return min((due for due in dues if due is not None), default=None)

    def commit(self) -> None:
        """Let what was handed over in this turn be made durable, and tell who waits that there is more to read."""
        self.cursors.flush()
        self.rounds.let_go()
        if self._advanced:
            advanced, self._advanced = self._advanced, {}
            for state in advanced:
                state.wake()

    def close(self) -> None:
        """Make everything durable and let go of the folder. Everybody who waits for an outcome is told."""
        self.rounds.stop()
        self.commit()
        try:
            self.committer.wait(self.committer.submit())
            for state in self.partitions:
                if state.unsaved:
                    self.partitions.checkpoint(state)
        finally:
            self.logs.close()
            self.store.close()

    # What partitions ask

    def advanced(self, state: PartitionState) -> None:
        """More can be read: who waits is told at the end of the turn."""
        if state.is_waited_for:
            self._advanced[state] = None

    def changed(self, state: PartitionState) -> None:
        """Its producers are to be written down some time."""
        self._housekeeping.changed(state)

    # What becomes true of topics

    def topic_created(self, topic: Topic) -> None:
        """Nothing to do: its partitions are opened when asked for."""

    def topic_grown(self, topic: Topic) -> None:
        """Nothing to do: its partitions are opened when asked for."""

    def topic_deleted(self, topic: Topic) -> None:
        """Let everything go that belongs to it."""
        self.cursors.drop_topic(topic)
        self._housekeeping.drop_topic(topic)
        self.partitions.drop_topic(topic)
        self.rounds.submit()

    def settings_changed(self, scope: Scope, values: Mapping[str, object], unset: Collection[str]) -> None:
        """Hand the new settings to those who keep them."""
        if scope.kind == "group":
            self._set_group_filters(scope.name)
            return
        self._housekeeping.settings_changed()
        for state in self.partitions:
            state.take_settings()

    # Pieces

    def _check_filters(self, text: object) -> None:
        try:
            self.filters.check(str(text))
        except ConfigError as error:
            raise Refused(Refusal.BAD_SETTING, f"entry_filters: {error}") from None

    def _set_group_filters(self, group: str) -> None:
        text = self.topics.own(Scope("group", group)).get("entry_filters")
        self.filters.set_group(group, None if text is None else str(text))

    def _log_of(self, topic: Topic, number: int) -> PartitionLog:
        return self.partition(topic.name, number).log

    def _adopt(self, state: PartitionState) -> None:
        self.transactions.adopt(state.partition, state.producers, self.now, self.now_ms)
