"""The Kafka door on a real broker without a thread: rounds and time are in a test's hands."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from penstock.broker.broker import Broker
from penstock.broker.groups.settings import GroupSettings
from penstock.broker.server.kafka.door import KafkaDoor
from penstock.broker.server.loop import Loop
from penstock.broker.settings import BrokerSettings
from penstock.broker.topics import Topic
from tests.broker.batches import FORMAT
from tests.broker.server.fakes import FakeHub
from tests.broker.server.kafka.desk import NOW_MS, Client, Desk

PROTOCOLS: tuple[dict[str, Any], ...] = (
    {"name": "range", "metadata": b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff"},
)
"""One way to share out, for members that want the topic t."""


class GroupDesk:
    """A broker with its door, and clients in memory."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.hub = FakeHub()
        self.hub.now, self.hub.now_ms = 1000.0, NOW_MS
        self._folder, self._settings = folder, GroupSettings(**settings)
        self.is_held = False
        """Whether what is handed over in a turn waits for `round`."""
        self._open()

    def _open(self) -> None:
        self.broker = Broker(
            *(BrokerSettings(self._folder), (FORMAT,), self.hub.now, self.hub.now_ms),
            groups=self._settings,
            threaded=False,
        )
        self.door = KafkaDoor(self.broker, cast(Loop, self.hub))
        self.door._bound = ("127.0.0.1", 9092)

    def restart(self) -> None:
        """Close the broker and open it again; clients must connect anew."""
        self.broker.close()
        self._open()

    def close(self) -> None:
        self.broker.close()

    def client(self) -> GroupClient:
        return GroupClient(self)

    def turn(self) -> None:
        self.broker.turn(self.hub.now, self.hub.now_ms)
        if not self.is_held:
            self.round()
        self.hub.end_turn()

    def round(self) -> None:
        """Make durable what was handed over, and what follows from that."""
        while self.broker.committer.run_round():
            self.broker.finish()
            self.broker.turn(self.hub.now, self.hub.now_ms)
        self.hub.end_turn()

    def pass_time(self, seconds: float) -> None:
        self.hub.now += seconds
        self.hub.now_ms += round(seconds * 1000)
        self.turn()

    def make(self, name: str, partitions: int) -> Topic:
        found: list[Any] = []
        self.broker.topics.create(name, partitions, now_ms=self.hub.now_ms, done=found.append)
        self.turn()
        (topic,) = found
        assert isinstance(topic, Topic)
        return topic


class GroupClient(Client):
    """One connection, and shorter ways to ask about groups."""

    def __init__(self, desk: GroupDesk) -> None:
        super().__init__(cast(Desk, desk))

    def join(self, group: str = "g", member: str = "", version: int = 9, **more: Any) -> None:
        """Join as a consumer does, without waiting for the answer."""
        values = {"group_id": group, "member_id": member, "protocol_type": "consumer", "protocols": PROTOCOLS}
        times = {"session_timeout": 10_000, "rebalance_timeout": 60_000}
        self.send("JoinGroup", version, **{**values, **times, **more})

    def enter(self, group: str = "g", **more: Any) -> str:
        """Be the only member of a stable group; the member's id."""
        self.join(group, **more)
        (named,) = self.answers()
        self.join(group, named.member_id, **more)
        (joined,) = self.answers()
        assert joined.error_code.value == 0
        assignments = ({"member_id": joined.member_id, "assignment": b"\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\0"},)
        self.sync(joined, group, assignments=assignments)
        (synced,) = self.answers()
        assert synced.error_code.value == 0
        return str(joined.member_id)

    def sync(self, joined: Any, group: str = "g", version: int = 5, **more: Any) -> None:
        who = {"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id}
        self.send("SyncGroup", version, **{**who, "protocol_type": "consumer", "protocol_name": "range", **more})

    def beat(self, member: str = "m", epoch: int = 0, group: str = "g", version: int = 1, **more: Any) -> Any:
        """Come by; a member that joins tells everything."""
        values: dict[str, Any] = {"rebalance_timeout": -1, "subscribed_topic_names": None, "topic_partitions": None}
        if epoch == 0:
            values = {"rebalance_timeout": 60_000, "subscribed_topic_names": ("t",), "topic_partitions": ()}
        who = {"group_id": group, "member_id": member, "member_epoch": epoch}
        return self.ask("ConsumerGroupHeartbeat", version, **{**who, **values, **more})

    def commit(self, position: int, group: str = "g", version: int = 9, **more: Any) -> None:
        """Commit for partition 0 of t, as nobody in particular."""
        partitions = ({"partition_index": 0, "committed_offset": position, "committed_metadata": "note"},)
        values = {"group_id": group, "generation_id_or_member_epoch": -1, "retention_time": -1}
        self.send("OffsetCommit", version, **{**values, "topics": ({"name": "t", "partitions": partitions},), **more})

    def committed(self, position: int, **more: Any) -> int:
        """The code that a commit is answered with."""
        self.commit(position, **more)
        (answer,) = self.answers()
        return int(answer.topics[0].partitions[0].error_code.value)

    def position(self, group: str = "g") -> int:
        """How far the group has come in partition 0 of t."""
        topics = ({"name": "t", "partition_indexes": (0,)},)
        answer = self.ask("OffsetFetch", 7, group_id=group, topics=topics)
        return int(answer.topics[0].partitions[0].committed_offset)
