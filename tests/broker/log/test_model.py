"""Logs against a model of ten lines, on a disk that loses power at any moment.

What must hold after a crash: all that was acknowledged, or shown to a reader, is there; what is there beyond it are the
next entries that were written, without a gap, as they were written; a log starts no earlier than was acknowledged and
no later than was asked for. Recovery itself may be cut short, any number of times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.broker.log.commit import FsyncPolicy
from penstock.broker.log.store import LogSettings
from penstock.errors import StorageFullError
from tests.broker.log.crash_disk import CrashDisk, PowerLoss
from tests.broker.log.kit import KAFKA, SMALL, Kit
from tests.broker.log.toy_format import TOY

LOGS = 3


@dataclass
class Model:
    """Entries that were written: first position, the one after, payload."""

    entries: list[tuple[int, int, bytes]] = field(default_factory=list)
    sure: int = 0
    start: int = 0
    start_asked: int = 0
    start_noted: bool = False
    """Whether it was asked for since the last submit."""

    @property
    def end(self) -> int:
        return self.entries[-1][1] if self.entries else self.start_asked

    def append(self, payload: bytes, count: int) -> None:
        self.entries.append((self.end, self.end + count, payload))

    def cut(self, end: int) -> None:
        self.entries = [each for each in self.entries if each[1] <= end]

    def payloads(self, start: int, end: int) -> list[bytes]:
        return [payload for first, after, payload in self.entries if after > start and after <= end]


class LogMachine(RuleBasedStateMachine):
    policy = FsyncPolicy.GROUP

    def __init__(self) -> None:
        super().__init__()
        self.saved = {where: getattr(*where) for where in SMALL}
        for (module, name), value in SMALL.items():
            setattr(module, name, value)

    @initialize(page=st.sampled_from([16, 64, 512]), journal=st.sampled_from([8192, 20_480]))
    def begin(self, page: int, journal: int) -> None:
        settings_ = LogSettings(segment_bytes=1500, journal_bytes=journal, files_max=8)
        self.kit = Kit(CrashDisk(page), self.policy, settings_)
        self.models = [Model() for _ in range(LOGS)]
        self.acks: list[tuple[int, list[int], list[int]]] = []
        self.opened()

    def teardown(self) -> None:
        if hasattr(self, "kit"):
            self.kit.close()
        for where, value in self.saved.items():
            setattr(*where, value)

    def opened(self) -> None:
        self.logs = [self.kit.open(number) for number in range(LOGS)]

    @property
    def disk(self) -> CrashDisk:
        assert isinstance(self.kit.disk, CrashDisk)
        return self.kit.disk

    # What can happen

    @rule(
        log=st.integers(0, LOGS - 1),
        size=st.sampled_from([0, 10, 60, 300, 1200]),
        count=st.integers(1, 3),
        claim=st.booleans(),
        time=st.integers(-1, 50),
        kafka=st.booleans(),
        seed=st.integers(0, 2**32).map(Random),
    )
    def append(self, log: int, size: int, count: int, claim: bool, time: int, kafka: bool, seed: Random) -> None:
        payload = seed.randbytes(size)
        before = len(self.models[log].entries)
        self.models[log].append(payload, count)
        try:
            place = self.kit.append(
                *(self.logs[log], payload, count, time, f"c={time}" if claim else ""),
                KAFKA if kafka else TOY,
            )
        except PowerLoss:
            self.restarted(crashed=True)
        except StorageFullError:
            del self.models[log].entries[before:]
        else:
            assert tuple(place) == (self.models[log].entries[-1][0], self.models[log].end - 1)

    @rule(
        times=st.integers(1, 6),
        small=st.booleans(),
        seed=st.integers(0, 2**32).map(Random),
    )
    def busy_time(self, times: int, small: bool, seed: Random) -> None:
        """Several rounds with appends to all logs, as under load."""
        for _ in range(times):
            for log in range(LOGS):
                for _ in range(seed.randrange(3)):
                    size = seed.randrange(40 if small else 300)
                    self.append(log, size, seed.randint(1, 2), seed.random() < 0.3, seed.randrange(50), False, seed)
            self.submit()
            self.run_round(finish=True)

    @rule()
    def submit(self) -> None:
        ends = [model.end for model in self.models]
        starts = [model.start_asked if model.start_noted else 0 for model in self.models]
        for model in self.models:
            model.start_noted = False
        self.kit.committer.submit(done=lambda error: self.acknowledged(error, ends, starts))

    def acknowledged(self, error: Exception | None, ends: list[int], starts: list[int]) -> None:
        if isinstance(error, StorageFullError):  # that a log starts later could not be noted
            return
        assert error is None
        for model, end, start in zip(self.models, ends, starts, strict=True):
            model.sure = max(model.sure, end)
            model.start = max(model.start, start)

    @rule(finish=st.booleans())
    def run_round(self, finish: bool) -> None:
        try:
            self.kit.committer.run_round()
        except PowerLoss:
            self.restarted(crashed=True)
        else:
            if finish:
                self.kit.committer.finish()

    @rule(log=st.integers(0, LOGS - 1), part=st.floats(0, 1))
    def delete_before(self, log: int, part: float) -> None:
        model, target = self.models[log], self.logs[log]
        position = target.start + int(part * (target.visible - target.start))
        model.start_asked, model.start_noted = max(model.start_asked, position), True
        self.unless_power_goes(lambda: target.delete_before(position))

    @rule(log=st.integers(0, LOGS - 1), size=st.integers(0, 4000), age=st.integers(0, 60))
    def retain(self, log: int, size: int, age: int) -> None:
        target = self.logs[log]
        self.models[log].start_asked = target.visible
        self.unless_power_goes(lambda: void(target.enforce_retention(50, size, age, None)))
        self.models[log].start_asked = max(self.logs[log].start, self.models[log].start)
        self.models[log].start_noted = True

    @rule(log=st.integers(0, LOGS - 1), part=st.floats(0, 1))
    def truncate(self, log: int, part: float) -> None:
        model, target = self.models[log], self.logs[log]
        position = target.start + int(part * (target.end - target.start))
        kept = next((first for first, after, _ in model.entries if after > position), model.end)
        self.submit()
        try:
            target.truncate(position)
        except PowerLoss:
            model.sure, model.start = min(model.sure, kept), min(model.start, kept)
            self.restarted(crashed=True)
        except StorageFullError:
            pass
        else:
            if position < model.end:
                model.sure = min(model.sure, kept)
                model.cut(kept)
                model.start_asked = model.start = min(model.start_asked, kept)
                assert target.end == kept

    @rule(log=st.integers(0, LOGS - 1))
    def roll(self, log: int) -> None:
        target = self.logs[log]
        target.segment_age_ms = 0
        self.unless_power_goes(lambda: void(target.maybe_roll(5000)))
        self.logs[log].segment_age_ms = 10**9

    @rule()
    def checkpoint(self) -> None:
        self.unless_power_goes(self.kit.store.checkpoint)

    @rule(operations=st.integers(0, 30))
    def power_will_go(self, operations: int) -> None:
        self.disk.fuse = operations

    @precondition(lambda self: self.disk.fuse is None)
    @rule(room=st.integers(0, 2000))
    def fill(self, room: int) -> None:
        self.disk.room = self.disk.used() + room

    @rule()
    def make_room(self) -> None:
        self.disk.room = None

    @rule()
    def crash(self) -> None:
        self.restarted(crashed=True)

    @rule()
    def kill(self) -> None:
        self.restarted(crashed=False)

    @precondition(lambda self: self.disk.room is None)
    @rule()
    def stop_and_start(self) -> None:
        try:
            self.kit.store.close()
        except PowerLoss:
            self.restarted(crashed=True)
            return
        ends = [log.end for log in self.logs]
        assert ends == [model.end for model in self.models]
        self.restarted(crashed=False)
        assert [log.end for log in self.logs] == ends

    @rule(log=st.integers(0, LOGS - 1), part=st.floats(0, 1), size=st.integers(1, 3000), limit=st.booleans())
    def read(self, log: int, part: float, size: int, limit: bool) -> None:
        model, target = self.models[log], self.logs[log]
        position = target.start + int(part * (target.visible - target.start))
        stop = position + size % 7 if limit else target.visible
        fuse, self.disk.fuse = self.disk.fuse, None
        found = target.read(position, size, stop if limit else None)
        self.disk.fuse = fuse
        wanted = [each for each in model.entries if each[1] > position and each[1] <= min(stop, target.visible)]
        if found is None:
            assert not wanted
            return
        found.release()
        assert found.first == wanted[0][0]
        got = [each for each in wanted if each[1] <= found.next]
        assert found.next == got[-1][1]
        assert found.size <= size or len(got) == 1

    @rule(log=st.integers(0, LOGS - 1), part=st.floats(0, 1))
    def backlog(self, log: int, part: float) -> None:
        model, target = self.models[log], self.logs[log]
        position = target.start + int(part * (target.visible - target.start))
        fuse, self.disk.fuse = self.disk.fuse, None
        waiting = target.backlog(position)
        self.disk.fuse = fuse
        assert waiting.messages == target.visible - position
        assert waiting.entries == len(model.payloads(position, target.visible))

    # What must hold

    @invariant()
    def logs_are_as_the_model_says(self) -> None:
        if not hasattr(self, "logs"):
            return
        for log, model in zip(self.logs, self.models, strict=True):
            assert log.end == model.end
            assert log.visible <= log.end
            assert log.start == model.start_asked
            try:
                payloads = self.kit.payloads(log)
            except PowerLoss:  # while an index was made anew
                self.restarted(crashed=True)
                return
            assert payloads == model.payloads(log.start, log.visible)
            model.sure = max(model.sure, log.visible)  # a reader has seen it

    def unless_power_goes(self, action: object) -> None:
        assert callable(action)
        try:
            action()
        except PowerLoss:
            self.restarted(crashed=True)
        except StorageFullError:
            pass

    def restarted(self, *, crashed: bool) -> None:
        chance = Random(len(self.models[0].entries) * 31 + self.models[1].end)
        room, self.disk.room = self.disk.room, None
        self.kit.disk = self.disk.crash(chance) if crashed else self.disk.kill()
        for fuse in (chance.randrange(60), chance.randrange(200), None):
            self.disk.fuse = fuse
            try:
                self.kit.start()
                self.opened()
                break
            except PowerLoss:
                self.kit.disk = self.disk.crash(chance) if crashed else self.disk.kill()
        self.disk.room = room
        for log, model in zip(self.logs, self.models, strict=True):
            assert model.sure <= log.end <= model.end
            assert model.start <= log.start <= model.start_asked
            assert log.visible == log.end
            model.cut(log.end)
            assert log.end == model.end or not model.entries
            model.start_asked = model.start = log.start
            model.start_noted = False


def void(_: object) -> None:
    """Do away with an outcome."""


class SystemMachine(LogMachine):
    """Syncing is left to the system: nothing is lost when the process ends, at whatever moment."""

    policy = FsyncPolicy.SYSTEM

    def restarted(self, *, crashed: bool) -> None:
        super().restarted(crashed=False)


class GroupMachine(LogMachine):
    policy = FsyncPolicy.GROUP


class AlwaysMachine(LogMachine):
    policy = FsyncPolicy.ALWAYS


TestGroup = GroupMachine.TestCase
TestGroup.settings = settings(max_examples=150, stateful_step_count=40)
TestAlways = AlwaysMachine.TestCase
TestAlways.settings = settings(max_examples=40, stateful_step_count=40)
TestSystem = SystemMachine.TestCase
TestSystem.settings = settings(max_examples=40, stateful_step_count=40)
