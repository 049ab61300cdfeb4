"""Clients that do as clients do, a broker that crashes, fails and is late, and what must hold whatever happens.

The model is what clients were told. Each transaction is known by its client, the entries it sent and their answers, and
the end that was asked for and answered. Then:

- what was committed is seen, all of it, once, in order; so are its offsets
- what was aborted, or was never to be committed, is not seen
- what was to be committed, without an answer, is seen as a whole or not at all
- when everything has come to rest, nothing holds readers back

Seen means decided: a reader may still be held back by somebody else's transaction before it.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.broker.refusals import Refusal, Refused
from penstock.errors import StorageFullError
from penstock.wire.protocol import Identity, Partition
from tests.broker.transactions_kit import CRASHES, TIMEOUT_MS, A, B, C, Crash, Disk, World

FATAL = {Refusal.FENCED, Refusal.STALE_EPOCH, Refusal.WRONG_PRODUCER_ID}
GROUP_PARTITION = C


@dataclass
class Deed:
    """One transaction, as its client knows it."""

    name: str
    sent: dict[str, Partition] = field(default_factory=dict)
    acked: set[str] = field(default_factory=set)
    has_offset: bool = False
    asked: bool | None = None
    """What end was asked for: True to commit."""
    answered: bool | None = None


@dataclass
class Client:
    """Somebody who has, or had, a transactional id."""

    tid: str
    identity: Identity
    renews: bool
    sequences: dict[Partition, int] = field(default_factory=dict)
    deed: Deed | None = None
    dead: bool = False


@dataclass
class Question:
    """What was asked, and may have to be asked again."""

    client: Client
    kind: str
    arguments: tuple[Any, ...]
    told: list[Any]


class TransactionsBesideClients(RuleBasedStateMachine):
    """Rules are what clients, time and disks do."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-transactions-"))

    @initialize(system=st.booleans(), renews=st.booleans())
    def begin(self, system: bool, renews: bool) -> None:
        self.world = World(Disk(self.folder, system))
        self.clients: list[Client] = []
        self.deeds: list[Deed] = []
        self.questions: list[Question] = []
        self.numbers = 0
        self.new_client("t", renews)
        self.new_client("u", True)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.come_to_rest()
            self.world.close()
        shutil.rmtree(self.folder)

    # Clients

    @rule(tid=st.sampled_from("tu"), renews=st.booleans(), anyway=st.integers(0, 4))
    def take_over(self, tid: str, renews: bool, anyway: int) -> None:
        if not anyway or not any(client.tid == tid for client in self.alive()):
            self.new_client(tid, renews)

    def new_client(self, tid: str, renews: bool) -> None:
        """A new instance takes an id; others that had it do not know yet."""
        self.drain()
        for _ in range(5):
            told = self.world.identify(tid)
            self.world.settle()
            if told and isinstance(told[0], Identity):
                self.clients.append(Client(tid, told[0], renews))
                return
            self.world.pass_time(1)

    def alive(self) -> list[Client]:
        return [client for client in self.clients if not client.dead]

    def free(self) -> list[Client]:
        """Clients that wait for nothing."""
        busy = [question.client for question in self.questions]
        return [client for client in self.alive() if not any(client is other for other in busy)]

    @rule(which=st.integers(0, 5), wheres=st.lists(st.sampled_from([A, B]), min_size=1, max_size=4))
    def send(self, which: int, wheres: list[Partition]) -> None:
        clients = self.free()
        for where in wheres:
            if clients:
                self.send_one(clients[which % len(clients)], where)

    def send_one(self, client: Client, where: Partition) -> None:
        if client.dead:
            return
        deed = self.open(client)
        self.numbers += 1
        value = f"{deed.name} {self.numbers}"
        sequence = client.sequences.get(where, 0)
        client.sequences[where] = sequence + 1
        deed.sent[value] = where
        self.ask(Question(client, "send", (where, sequence, value), []))

    @rule(which=st.integers(0, 5))
    def send_offset(self, which: int) -> None:
        clients = [client for client in self.free() if client.deed is not None and not client.deed.has_offset]
        if clients:
            client = clients[which % len(clients)]
            assert client.deed is not None
            client.deed.has_offset = True
            self.ask(Question(client, "offset", (client.deed.name,), []))

    @rule(which=st.integers(0, 5), commit=st.sampled_from([True, True, False]))
    def end(self, which: int, commit: bool) -> None:
        clients = [client for client in self.free() if client.deed is not None]
        if clients:
            client = clients[which % len(clients)]
            assert client.deed is not None
            client.deed.asked = commit
            self.ask(Question(client, "end", (commit,), []))

    def open(self, client: Client) -> Deed:
        if client.deed is None:
            self.numbers += 1
            client.deed = Deed(f"deed {self.numbers}")
            self.deeds.append(client.deed)
        return client.deed

    def ask(self, question: Question) -> None:
        self.questions.append(question)
        self.say(question)
        self.hear()

    def say(self, question: Question) -> None:
        client, world = question.client, self.world
        if question.kind == "send":
            where, sequence, value = question.arguments
            if not client.renews:
                world.enlist(client.tid, client.identity, where)
                world.round()
            question.told = world.publish(where, client.identity, sequence, value, client.tid, joins=client.renews)
        elif question.kind == "offset":
            if not client.renews:
                world.enlist_group(client.tid, client.identity, *question.arguments)
                world.round()
            question.told = world.commit_offset(
                *(client.tid, client.identity, *question.arguments, GROUP_PARTITION, 7), joins=client.renews
            )
        else:
            (commit,) = question.arguments
            question.told = world.end(client.tid, client.identity, commit, client.renews)

    def hear(self) -> None:
        """Take what was answered."""
        for question in list(self.questions):
            if not question.told or question.client.dead:
                continue
            (answer,) = question.told
            if isinstance(answer, Refused) and answer.reason not in FATAL | {Refusal.BAD_TRANSACTION_STATE}:
                question.told = []
                question.kind = f"{question.kind.removesuffix(' again')} again"
                continue
            self.questions.remove(question)
            if isinstance(answer, Exception):
                self.die(question.client)
            else:
                self.succeed(question, answer)

    def die(self, client: Client) -> None:
        """Fenced, or aborted by time: this client gives up, and what it asked for last may have been done."""
        client.dead = True
        self.questions = [question for question in self.questions if question.client is not client]

    def succeed(self, question: Question, answer: Any) -> None:
        client = question.client
        kind = question.kind
        assert client.deed is not None
        if kind == "send":
            client.deed.acked.add(question.arguments[2])
        elif kind == "end":
            client.deed.answered = client.deed.asked
            client.deed = None
            if client.renews:
                assert answer == Identity(client.identity.producer, client.identity.epoch + 1)
                client.sequences = {}
            client.identity = answer

    @rule()
    def ask_again(self) -> None:
        """Clients whose request was lost, or must be tried again, ask again."""
        for question in list(self.questions):
            if question.kind.endswith(" again"):
                question.kind = question.kind.removesuffix(" again")
                self.say(question)
        self.hear()

    # The broker

    @rule(rounds=st.integers(1, 6), again=st.booleans())
    def go_on(self, rounds: int, again: bool) -> None:
        for _ in range(rounds):
            self.world.round()
            self.hear()
        if again:
            self.ask_again()

    @rule()
    def failing_round(self) -> None:
        if not self.world.disk.system:
            self.world.round(fail=StorageFullError("no room"))
            self.hear()

    @rule(crash=st.sampled_from(CRASHES), rounds=st.integers(0, 3), seldom=st.integers(0, 1))
    def crash(self, crash: Crash, rounds: int, seldom: int) -> None:
        if seldom:
            return
        for _ in range(rounds):
            self.world.round()
        self.world.round(crash=crash)
        self.hear()
        self.world = self.world.restarted()
        self.world.settle()  # a broker ends what was being ended before it serves anybody
        for question in self.questions:
            question.kind = f"{question.kind.removesuffix(' again')} again"
            question.told = []

    @rule(seconds=st.sampled_from([0.1, 0.6, 0.6, 0.6, 5.0, 5.0, TIMEOUT_MS / 1000 + 1]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)
        self.hear()

    @rule(where=st.sampled_from([A, B]), full=st.booleans())
    def disk_full(self, where: Partition, full: bool) -> None:
        self.world.partition(*where).full = full

    # What must hold

    def drain(self) -> None:
        """Let everything come to rest, but for transactions that nobody ends."""
        for where in (A, B):
            self.world.partition(*where).full = False
        for _ in range(4):
            self.world.pass_time(1)
            self.world.settle()
            self.hear()
            self.ask_again()
            self.world.settle()
            self.hear()

    def seen(self) -> dict[Partition, list[str]]:
        return {where: self.world.partition(*where).decided() for where in (A, B)}

    @precondition(lambda self: hasattr(self, "world"))
    @invariant()
    def nothing_is_half_seen(self) -> None:
        seen = self.seen()
        for deed in self.deeds:
            shown = [value in seen[where] for value, where in deed.sent.items()]
            if deed.has_offset:
                shown.append(self.world.offset(deed.name, GROUP_PARTITION) is not None)
            if deed.asked is not True or deed.answered is False:
                assert not any(shown), (deed, seen)
            elif deed.answered:
                assert all(shown), (deed, seen)
            else:
                assert all(shown) or not any(shown), (deed, seen)

    @precondition(lambda self: hasattr(self, "world"))
    @invariant()
    def nothing_is_twice_or_out_of_order(self) -> None:
        for where in (A, B):
            values = [row.value for row in self.world.partition(*where).rows if row.value.startswith("deed")]
            assert len(values) == len(set(values))
            for deed in self.deeds:
                mine = [value for value in values if value in deed.sent]
                assert mine == sorted(mine, key=list(deed.sent).index)

    def come_to_rest(self) -> None:
        self.drain()
        self.world.pass_time(TIMEOUT_MS / 1000 + 1)
        self.world.settle()
        self.world.pass_time(1)
        self.world.settle()
        self.hear()
        self.nothing_is_half_seen()
        for where in (A, B):
            partition = self.world.partition(*where)
            assert partition.stable == len(partition.rows), (where, partition.rows)
            assert partition.committed() == partition.decided()
        assert not self.world.offsets.producers()


TransactionsBesideClients.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
test_transactions_beside_clients = TransactionsBesideClients.TestCase
