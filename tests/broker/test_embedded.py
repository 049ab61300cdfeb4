from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

import penstock
from penstock.broker.embedded import EmbeddedBroker
from penstock.broker.filters import FilterContext, FilteredEntry, Verdict
from penstock.broker.log.partition import Backlog
from penstock.broker.refusals import Refused
from penstock.clock import ManualClock
from penstock.errors import ClosedError, ConfigError, FolderInUseError, PenstockError, RefusedError
from tests.broker.batches import batch
from tests.kafka_raw import produce

LIMIT_S = 30.0
KAFKA_STORAGE_ERROR = 56


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with penstock.embedded(partitions_default=4) as made:
        made.create_topic("orders")
        yield made


def send(broker: EmbeddedBroker, topic: str = "orders", count: int = 1, partition: int = 0) -> None:
    """Store one batch of so many messages."""
    assert produce(broker.address.kafka, topic, batch(count), partition).error == 0


def test_it_serves_on_a_free_port_of_the_loopback_address(broker: EmbeddedBroker) -> None:
    host, port = broker.address.kafka
    assert host == "127.0.0.1"
    assert broker.bootstrap == f"127.0.0.1:{port}"
    assert broker.url == f"kafka://127.0.0.1:{port}"
    with penstock.connect(broker.url) as client:
        client.create_topic("payments", 3)
        assert client.partitions("payments") == 3


def test_a_temporary_folder_goes_with_it(broker: EmbeddedBroker) -> None:
    assert broker.data.is_dir()
    assert broker.is_running
    broker.close()
    assert not broker.data.exists()
    assert not broker.is_running
    broker.close()
    assert "closed" in repr(broker)


def test_a_folder_that_was_given_stays_and_keeps_its_topics(tmp_path: Path) -> None:
    with penstock.embedded(tmp_path / "new") as broker:
        broker.create_topic("orders")
        send(broker, count=3)
        assert json.loads((tmp_path / "new" / "address.json").read_text())["kafka"] == broker.bootstrap
    assert not (tmp_path / "new" / "address.json").exists()
    with penstock.embedded(str(tmp_path / "new")) as broker:
        assert broker.stats("orders")["messages"] == 3


def test_durability_is_left_to_the_system_only_where_nothing_is_to_last(tmp_path: Path) -> None:
    with penstock.embedded() as temporary, penstock.embedded(tmp_path) as lasting:
        assert temporary.stats()["broker"]["fsync"] == "system"
        assert lasting.stats()["broker"]["fsync"] == "group"
    with penstock.embedded(fsync="always") as asked:
        assert asked.stats()["broker"]["fsync"] == "always"


def test_one_broker_at_a_time_has_a_folder(tmp_path: Path) -> None:
    with penstock.embedded(tmp_path), pytest.raises(FolderInUseError):
        penstock.embedded(tmp_path)


def test_a_port_in_use_is_told_and_leaves_nothing_behind(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="in use"):
        penstock.embedded(tmp_path, port=broker.address.kafka[1])
    with penstock.embedded(tmp_path):
        pass


@pytest.mark.parametrize("settings", [{"no_such_thing": 1}, {"fsync": "never"}, {"http_port": 1 << 16}])
def test_wrong_settings_are_told_and_leave_nothing_behind(settings: dict[str, object], tmp_path: Path) -> None:
    before = set(Path(os.environ.get("TMPDIR", "/tmp")).glob("penstock-*"))
    with pytest.raises(ConfigError):
        penstock.embedded(**settings)  # type: ignore[arg-type]
    assert set(Path(os.environ.get("TMPDIR", "/tmp")).glob("penstock-*")) <= before


def test_a_topic_is_created_with_its_settings(broker: EmbeddedBroker) -> None:
    broker.create_topic("payments", 2, entry_filters="property(a = 1)", retention_ms="none")
    told = broker.stats("payments")
    assert (told["partitions"], told["entry_filters"]) == (2, "property(a = 1)")
    with pytest.raises(Refused, match="there is a topic payments already"):
        broker.create_topic("payments")


def test_it_tells_of_itself_and_of_a_topic(broker: EmbeddedBroker) -> None:
    send(broker, count=10)
    send(broker, count=5, partition=2)
    told = broker.stats()
    assert told["broker"]["topics"] == 1
    (orders,) = told["topics"]
    assert (orders["topic"], orders["partitions"], orders["messages"]) == ("orders", 4, 15)
    topic = broker.stats("orders")
    assert topic["published"]["messages"] == 15
    assert topic["published"]["average_batch_messages"] == 7.5
    assert [part["end"] for part in topic["each_partition"]] == [10, 0, 5, 0]
    assert broker.stats("public/default/orders")["topic"] == "orders"
    with pytest.raises(Refused, match="there is no topic"):
        broker.stats("payments")


def test_producers_are_told_by_the_name_they_call_themselves(broker: EmbeddedBroker) -> None:
    with penstock.connect(broker.url, client_id="everywhere") as client:
        orders = client.producer("orders", idempotence=False)
        for partition in range(4):
            orders.send(b"value", partition=partition)
        orders.flush()
        with penstock.connect(broker.url, client_id="one place") as other:
            other.producer("orders", idempotence=False).send(b"value", partition=3).result()
            producers = {each["name"]: each for each in broker.stats("orders")["producers"]}
    assert producers["everywhere"]["partitions"] == [0, 1, 2, 3]
    assert producers["one place"]["partitions"] == [3]
    assert producers["one place"]["published"]["messages"] == 1
    assert producers["one place"]["connections"] > 0


def test_the_same_is_had_over_http() -> None:
    with penstock.embedded(http_port=0) as broker:
        broker.create_topic("orders")
        send(broker)
        with urllib.request.urlopen(f"{broker.http_url}/stats/topics/orders", timeout=LIMIT_S) as answer:
            told = json.loads(answer.read())
        assert told["each_partition"][0]["end"] == 1
        with urllib.request.urlopen(f"{broker.http_url}/ready", timeout=LIMIT_S) as answer:
            assert answer.read() == b"ready\n"


def test_settings_are_changed_for_the_broker_a_namespace_a_topic_or_a_group(tmp_path: Path) -> None:
    with penstock.embedded(tmp_path) as broker:
        broker.create_topic("orders")
        broker.change(entry_filters="property(a = 1)")
        assert broker.stats("orders")["entry_filters"] == "property(a = 1)"
        broker.change(namespace="public/default", entry_filters="property(a = 2)")
        assert broker.stats("orders")["entry_filters"] == "property(a = 2)"
        broker.change(topic="orders", entry_filters="property(a = 3)")
        broker.change(group="billing", entry_filters="property(b = 1)")
    with penstock.embedded(tmp_path) as broker:
        assert broker.stats("orders")["entry_filters"] == "property(a = 3)"
        broker.change(topic="orders", entry_filters=None)
        assert broker.stats("orders")["entry_filters"] == "property(a = 2)"
        broker.change(namespace="public/default", entry_filters="none")
        assert broker.stats("orders")["entry_filters"] is None


def test_settings_that_cannot_be_are_refused(broker: EmbeddedBroker) -> None:
    with pytest.raises(Refused, match="there is no entry filter 'proprety'; property\\?"):
        broker.change(topic="orders", entry_filters="proprety(a = 1)")
    with pytest.raises(Refused, match="there is no topic"):
        broker.change(topic="payments", retention_ms=1)
    with pytest.raises(Refused, match="retention_ms cannot be set for a group"):
        broker.change(group="billing", retention_ms=1)
    with pytest.raises(ConfigError, match="one namespace, topic or group at a time"):
        broker.change(group="billing", topic="orders", retention_ms=1)


def test_a_topic_without_partitions_is_one_log_and_does_not_grow(broker: EmbeddedBroker) -> None:
    broker.create_topic("single", partitioned=False)
    send(broker, "single", 2)
    with penstock.connect(broker.url) as client:
        assert client.partitions("single") == 1
        with pytest.raises(RefusedError, match="without partitions"):
            client.grow_topic("single", 2)
        client.grow_topic("orders", 5)
    with pytest.raises(Refused, match="is one log, not 3"):
        broker.create_topic("other", 3, partitioned=False)


# Cursors


def test_a_cursor_is_made_acknowledged_moved_and_deleted(tmp_path: Path) -> None:
    with penstock.embedded(tmp_path) as broker:
        broker.create_topic("orders", 2)
        for count in (3, 1, 4, 2):
            send(broker, count=count, partition=1)
        cursor = broker.create_cursor("orders", "billing", partition=1, at="earliest")
        assert (cursor.position(), cursor.acknowledged()) == (0, [])
        assert cursor.backlog()[:2] == (4, 10)
        cursor.acknowledge(5, range(7, 10))
        assert (cursor.position(), cursor.acknowledged()) == (0, [range(5, 6), range(7, 10)])
        assert cursor.backlog()[:2] == (3, 6)
        cursor.acknowledge_before(5)
        assert (cursor.position(), cursor.acknowledged()) == (6, [range(7, 10)])
    with penstock.embedded(tmp_path) as broker:
        cursor = broker.cursor("orders", "billing", partition=1)
        assert (cursor.position(), cursor.acknowledged()) == (6, [range(7, 10)])
        cursor.acknowledge(6)
        assert (cursor.position(), cursor.backlog()) == (10, Backlog(0, 0, 0))
        assert [cursor.reset(place) for place in ("earliest", 4, "latest")] == [0, 4, 10]
        assert cursor.position() == 10
        (told,) = broker.stats("orders")["readers"]
        assert (told["kind"], told["name"], told["partitions"]) == ("cursor", "billing", [1])
        cursor.delete()
        with pytest.raises(Refused, match="there is no cursor billing"):
            cursor.position()
        assert broker.cursors("orders", partition=1) == []


def test_a_cursor_goes_to_a_time(broker: EmbeddedBroker) -> None:
    for time_ms in (1000, 2000, 3000):
        assert produce(broker.address.kafka, "orders", batch(2, time_ms=time_ms), 0).error == 0
    at = datetime.fromtimestamp
    cursor = broker.create_cursor("orders", "billing", at=at(1.5, UTC))
    assert cursor.position() == 2
    assert [cursor.reset(at(seconds, UTC)) for seconds in (0, 2.001, 9)] == [0, 4, 6]


def test_cursors_are_found_by_name_and_partition(broker: EmbeddedBroker) -> None:
    for name in ("b", "a"):
        broker.create_cursor("orders", name)
    broker.create_cursor("orders", "c", partition=3)
    assert [each.name for each in broker.cursors("orders")] == ["a", "b"]
    assert [repr(each) for each in broker.cursors("orders", partition=3)] == ["<EmbeddedCursor c of orders-3>"]
    assert broker.cursors("orders", partition=1) == []


def test_what_cannot_be_done_with_a_cursor_is_refused(broker: EmbeddedBroker) -> None:
    send(broker, count=3)
    cursor = broker.create_cursor("orders", "billing")
    for act, text in (
        (lambda: broker.cursor("orders", "other"), "there is no cursor other"),
        (lambda: broker.cursor("payments", "billing"), "there is no topic"),
        (lambda: broker.cursors("orders", partition=9), "partitions 0 to 3, not 9"),
        (lambda: broker.create_cursor("orders", "billing"), "there is a cursor billing"),
        (lambda: broker.create_cursor("orders", "late", at=4), "outside"),
        (lambda: cursor.acknowledge(3), "up to 3"),
        (lambda: cursor.acknowledge_before(4), "up to 3"),
        (lambda: cursor.reset(-1), "outside"),
    ):
        with pytest.raises(Refused, match=text):
            act()
    for place in ("soon", 1.5, True, datetime(2024, 1, 1)):
        with pytest.raises(ConfigError, match="to: "):
            cursor.reset(place)  # type: ignore[arg-type]
    for wrong in (range(3, 3), range(0, 4, 2)):
        with pytest.raises(ConfigError, match="in steps of 1"):
            cursor.acknowledge(wrong)
    assert (cursor.position(), cursor.acknowledged()) == (3, [])


def test_a_cursor_may_be_used_by_many_threads_at_once(broker: EmbeddedBroker) -> None:
    send(broker, count=200)
    cursor = broker.create_cursor("orders", "billing", at="earliest")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(cursor.acknowledge, range(1, 200)))
    assert (cursor.position(), cursor.acknowledged()) == (0, [range(1, 200)])
    cursor.acknowledge(0)
    assert cursor.position() == 200


def test_what_a_cursor_has_not_read_is_kept_where_that_is_wanted() -> None:
    clock = ManualClock(wall_ms=10**12)
    with penstock.embedded(clock=clock, retention_check_ms=1000) as broker:
        for name, keep in (("kept", True), ("gone", False)):
            broker.create_topic(name, retention_ms=1000, keep_unread=keep)
            broker.create_cursor(name, "billing")
            send(broker, name, 5)
        for _ in range(5):
            clock.advance(100)
            broker.settle()
        assert broker.cursor("kept", "billing").backlog().messages == 5
        assert broker.cursor("gone", "billing").backlog().messages == 0
        assert broker.cursor("gone", "billing").position() == 5
        broker.cursor("kept", "billing").acknowledge_before(5)
        for _ in range(5):
            clock.advance(100)
            broker.settle()
        assert broker.stats("kept")["each_partition"][0]["start"] == 5


# Faults


def test_a_paused_broker_answers_nobody_until_it_goes_on(broker: EmbeddedBroker) -> None:
    send(broker)
    broker.pause()
    broker.pause()
    assert "paused" in repr(broker)
    answered = threading.Event()

    def ask() -> None:
        send(broker)
        answered.set()

    waiting = threading.Thread(target=ask)
    waiting.start()
    assert not answered.wait(0.05)
    broker.resume()
    broker.resume()
    assert answered.wait(LIMIT_S)
    waiting.join()


def test_a_paused_broker_can_be_closed(broker: EmbeddedBroker) -> None:
    broker.pause()
    broker.close()
    assert not broker.is_running


def test_connections_can_be_cut(broker: EmbeddedBroker) -> None:
    with socket.create_connection(broker.address.kafka, LIMIT_S) as client:
        broker.settle()
        broker.disconnect()
        assert client.recv(1) == b""
    send(broker)


def test_a_broker_that_can_make_nothing_durable_says_so_and_refuses(tmp_path: Path) -> None:
    def broken(*_: object) -> list[Exception | None]:
        raise sqlite3.OperationalError("cannot roll back")

    with penstock.embedded(tmp_path, http_port=0) as broker:
        broker.create_topic("orders")
        send(broker)
        broker._runner.on_loop(lambda inner: setattr(inner.committer, "_commit", broken))
        with pytest.raises(Refused, match="the commit thread has failed"):
            broker.create_topic("payments")
        assert produce(broker.address.kafka, "orders", batch(1), 0).error == KAFKA_STORAGE_ERROR
        with pytest.raises(urllib.error.HTTPError, match="503") as unready:
            urllib.request.urlopen(f"{broker.http_url}/ready", timeout=LIMIT_S)
        with unready.value:
            assert b"the commit thread has failed" in unready.value.read()


def test_time_can_be_a_test_s_own() -> None:
    clock = ManualClock()
    with penstock.embedded(clock=clock) as broker:
        clock.advance(90)
        broker.settle()
        assert broker.stats()["broker"]["uptime_s"] == 90.0


def test_filters_can_be_given_in_code() -> None:
    class Mine:
        def filter_entry(self, entry: FilteredEntry, context: FilterContext) -> Verdict:
            return Verdict.ACCEPT

    with penstock.embedded(filters={"mine": Mine()}, entry_filters="mine") as broker:
        broker.create_topic("orders")
        assert broker.stats("orders")["entry_filters"] == "mine"
    with pytest.raises(ConfigError, match="there is no entry filter 'other'"):
        penstock.embedded(entry_filters="other")


def test_a_closed_broker_says_so(broker: EmbeddedBroker) -> None:
    broker.close()
    for act in (broker.stats, broker.pause, broker.disconnect, broker.settle):
        with pytest.raises(ClosedError):
            act()


def test_a_broker_that_nobody_holds_any_more_ends() -> None:
    broker = penstock.embedded()
    data, address = broker.data, broker.address.kafka
    del broker
    gc.collect()
    assert not data.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, LIMIT_S)


def test_a_program_that_forgets_to_close_ends_and_leaves_nothing_behind() -> None:
    code = "import penstock; broker = penstock.embedded(); print(broker.data)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stderr == ""
    assert not Path(done.stdout.strip()).exists()


def test_a_child_of_fork_says_so_and_harms_nobody(tmp_path: Path) -> None:
    broker = penstock.embedded(tmp_path)
    port = broker.address.kafka[1]
    with socket.create_connection(broker.address.kafka, LIMIT_S) as client:
        broker.settle()
        read_end, write_end = os.pipe()
        child = os.fork()
        if not child:
            _be_a_child(broker, write_end)
        try:
            os.close(write_end)
            with os.fdopen(read_end, "rb") as told:
                assert told.readline() == b"5 of 5 say so\n"
                assert broker.stats()["broker"]["connections"] == 1
                broker.close()
                assert client.recv(1) == b""
                with penstock.embedded(tmp_path, port=port) as again:
                    assert again.is_running
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _be_a_child(broker: EmbeddedBroker, write_end: int) -> None:
    """In the child: nothing works but closing, which does nothing; then it stays until it is killed."""
    try:
        said = 0
        for act in (broker.stats, broker.pause, broker.disconnect, broker.settle, broker.change):
            try:
                act()
            except PenstockError as error:
                said += "by fork()" in str(error)
        broker.close()
        os.write(write_end, f"{said} of 5 say so\n".encode())
        signal.pause()
    finally:
        os._exit(1)
