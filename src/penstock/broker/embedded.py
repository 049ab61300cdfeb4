"""A broker inside this process: `penstock.embedded()`, for tests and scripts.

    with penstock.embedded() as broker:
        with penstock.connect(broker.url) as client: ...

It is the broker that `penstock serve` runs, on a thread of its own and a free port of the loopback address. Without a
data folder it gets one that goes with it; such a broker leaves syncing to the system, since nothing of it is to last.

A child of `fork()` does not have the broker's threads: there everything says so and fails, but for `close`, which does
nothing. The parent's broker goes on, and what the parent gives up is free, whatever a child has inherited.

Runs on: any thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from penstock.broker.embedded_cursor import EmbeddedCursor, Place, create_cursor, find_cursor, list_cursors
from penstock.broker.launch import (
    ADDRESS_FILE,
    Address,
    check_filters,
    join_host,
    read_settings,
    read_value,
    remove_address,
)
from penstock.broker.reporter import Reporter
from penstock.broker.server.service import ServerSettings, Service
from penstock.broker.store import Scope
from penstock.errors import ClosedError, ConfigError
from penstock.net.fork import Birth

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.filters import EntryFilter, FilterFactory
    from penstock.broker.topics import Topic
    from penstock.clock import Clock

LOOK_S: Final = 0.2

Result = TypeVar("Result")


def embedded(
    data: str | os.PathLike[str] | None = None,
    *,
    port: int = 0,
    http_port: int | None = None,
    filters: Mapping[str, FilterFactory | EntryFilter] | None = None,
    clock: Clock | None = None,
    **settings: object,
) -> EmbeddedBroker:
    """A broker on this data folder, or on a temporary one; close it, or use it as a context manager.

    Port 0 is a free one. Without `http_port` there is no HTTP; `stats()` works all the same. `filters` are entry
    filters by name, beside the installed ones. All other settings are those of docs/broker-settings.md.
    """
    return EmbeddedBroker(data, port=port, http_port=http_port, filters=filters, clock=clock, settings=settings)


class EmbeddedBroker:
    """A broker that runs on a thread of this process."""

    def __init__(
        self,
        data: str | os.PathLike[str] | None,
        *,
        port: int,
        http_port: int | None,
        filters: Mapping[str, FilterFactory | EntryFilter] | None,
        clock: Clock | None,
        settings: Mapping[str, object],
    ) -> None:
        own = Path(tempfile.mkdtemp(prefix="penstock-")) if data is None else None
        self.data = own or Path(os.fspath(data or ""))
        """The data folder."""
        given = {"fsync": "system", **settings} if own else settings
        with contextlib.ExitStack() as undo:
            undo.callback(_remove, own)
            read, groups = read_settings(self.data, given)
            check_filters(read, filters)
            server = ServerSettings(port=port, http_port=http_port)
            service = Service(read, server, clock=clock, filters=filters, groups=groups)
            service.start()
            undo.callback(service.stop)
            host = service.server.host
            http = None if service.http_port is None else (host, service.http_port)
            self.address = Address(service.address, http)
            """Where it listens."""
            self.address.write(self.data / ADDRESS_FILE)
            undo.pop_all()
        self._runner = _Runner(service, self.data / ADDRESS_FILE, own)
        self._finalizer = weakref.finalize(self, self._runner.close)

    @property
    def bootstrap(self) -> str:
        """`host:port`, as Kafka clients take it."""
        return join_host(self.address.kafka)

    @property
    def url(self) -> str:
        """The URL for `penstock.connect`."""
        return self.address.url

    @property
    def http_url(self) -> str | None:
        """The URL of statistics and metrics, if there is one."""
        return None if self.address.http is None else f"http://{join_host(self.address.http)}"

    @property
    def is_running(self) -> bool:
        """Whether it still serves."""
        return self._runner.is_running

    def stats(self, topic: str | None = None) -> dict[str, Any]:
        """What the broker tells of itself, or of one topic: the JSON that is also had over HTTP."""

        def make(reporter: Reporter, broker: Broker) -> Iterator[bytes]:
            return reporter.overview() if topic is None else reporter.topic(broker.topics.get(topic))

        return self._runner.read(make)

    def create_topic(
        self, name: str, partitions: int | None = None, *, partitioned: bool = True, **settings: object
    ) -> None:
        """Create a topic, with as many partitions as `partitions_default` says if none are given, and its settings.

        One that is not partitioned is a single log and stays so: it cannot get more partitions later.
        """
        values = {each: read_value(each, value) for each, value in settings.items()}

        def create(broker: Broker, done: Callable[[Exception | None], None]) -> None:
            def created(outcome: Topic | Exception) -> None:
                done(outcome if isinstance(outcome, Exception) else None)

            now_ms = broker.now_ms
            broker.topics.create(name, partitions, values, now_ms=now_ms, done=created, partitioned=partitioned)

        self._runner.until_done(create)

    def create_cursor(self, topic: str, name: str, *, partition: int = 0, at: Place = "latest") -> EmbeddedCursor:
        """Make a durable cursor in a partition: at `earliest`, `latest`, a position or a datetime."""
        return create_cursor(self._runner, topic, name, partition, at)

    def cursor(self, topic: str, name: str, *, partition: int = 0) -> EmbeddedCursor:
        """The durable cursor of that name."""
        return find_cursor(self._runner, topic, name, partition)

    def cursors(self, topic: str, *, partition: int = 0) -> list[EmbeddedCursor]:
        """All durable cursors of a partition, by name."""
        return list_cursors(self._runner, topic, partition)

    def change(
        self, *, namespace: str | None = None, topic: str | None = None, group: str | None = None, **settings: object
    ) -> None:
        """Set topics' settings, durably: for one namespace, topic or group, otherwise for the broker.

        None takes a setting back; the text `none` stands for no limit. Refused when one is unknown or not taken.
        """
        named = {"namespace": namespace, "topic": topic, "group": group}
        scopes = [Scope(kind, name) for kind, name in named.items() if name is not None]
        if len(scopes) > 1:
            raise ConfigError("settings are changed for one namespace, topic or group at a time")
        values = {name: read_value(name, value) for name, value in settings.items() if value is not None}
        unset = [name for name, value in settings.items() if value is None]
        scope = scopes[0] if scopes else Scope("broker")
        self._runner.until_done(lambda broker, done: broker.topics.change(scope, values, unset, done))

    def pause(self) -> None:
        """Let the broker stand still: connections stay open, and nothing is answered until `resume`."""
        self._runner.pause()

    def resume(self) -> None:
        """Let it go on."""
        self._runner.resume()

    def disconnect(self) -> None:
        """Cut all connections, as a failing network would; clients may connect anew at once."""
        self._runner.disconnect()

    def settle(self) -> None:
        """Return when the broker has done a whole turn: what was due when this was called is done.

        For a test that has moved the broker's clock.
        """
        for _ in range(2):
            self._runner.on_loop(lambda broker: None)

    def close(self) -> None:
        """Stop it; what it was given to store is durable. Removes a temporary folder. May be called again."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<EmbeddedBroker {self.url} on {self.data}, {self._runner.state}>"


class _Runner:
    """A service, and how others get things done on its thread."""

    def __init__(self, service: Service, address_file: Path, own_folder: Path | None) -> None:
        self._service = service
        self._address_file = address_file
        self._own_folder = own_folder
        self._birth = Birth()
        self._go_on: threading.Event | None = None
        self._reporter = self.on_loop(self._make_reporter)

    @property
    def is_running(self) -> bool:
        return self._birth.is_here() and self._service.is_serving

    @property
    def state(self) -> str:
        if not self._birth.is_here():
            return "inherited by fork()"
        if not self._service.is_serving:
            return "closed"
        return "running" if self._go_on is None else "paused"

    def on_loop(self, function: Callable[[Broker], Result]) -> Result:
        """What the function returns, called on the broker's thread."""
        self._birth.check("this broker")
        future: Future[Result] = Future()

        def call(broker: Broker) -> None:
            try:
                future.set_result(function(broker))
            except BaseException as error:  # noqa: BLE001
                future.set_exception(error)

        self._service.call(call)
        return self._waited(future)

    def until_done(self, start: Callable[[Broker, Callable[[Exception | None], None]], None]) -> None:
        """Start something on the broker's thread that tells later when it is done; raises what it tells."""
        future: Future[None] = Future()

        def done(error: Exception | None) -> None:
            future.set_result(None) if error is None else future.set_exception(error)

        self.on_loop(lambda broker: start(broker, done))
        self._waited(future)

    def _waited(self, future: Future[Result]) -> Result:
        while not wait((future,), LOOK_S).done:
            if not self._service.is_serving:
                raise ClosedError("the broker was closed meanwhile")
        return future.result()

    def read(self, make: Callable[[Reporter, Broker], Iterator[bytes]]) -> dict[str, Any]:
        """The JSON of a report that is made on the broker's thread, a piece in each turn."""
        pieces = self.on_loop(lambda broker: make(self._reporter, broker))
        made: list[bytes] = []
        while (piece := self.on_loop(lambda broker: next(pieces, None))) is not None:
            made.append(piece)
        told: dict[str, Any] = json.loads(b"".join(made))
        return told

    def pause(self) -> None:
        """Returns when the broker stands still."""
        if self._go_on is not None:
            return
        self._birth.check("this broker")
        go_on, stands_still = threading.Event(), threading.Event()

        def stand_still(broker: Broker) -> None:
            stands_still.set()
            go_on.wait()

        self._service.call(stand_still)
        self._go_on = go_on
        while not stands_still.wait(LOOK_S):
            if not self._service.is_serving:
                raise ClosedError("the broker was closed meanwhile")

    def resume(self) -> None:
        go_on, self._go_on = self._go_on, None
        if go_on is not None:
            go_on.set()

    def disconnect(self) -> None:
        """Returns when no connection is left of those that there were."""

        def cut(broker: Broker) -> None:
            for connection in list(self._service.loop.connections.values()):
                connection.close("cut by its own process")

        self.on_loop(cut)

    def close(self) -> None:
        if not self._birth.is_here():
            return
        self.resume()
        self._service.stop()
        remove_address(self._address_file)
        _remove(self._own_folder)

    def _make_reporter(self, broker: Broker) -> Reporter:
        loop = self._service.loop
        return Reporter(broker, loop, broker.groups, lambda: len(loop.connections))


def _remove(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
