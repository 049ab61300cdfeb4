"""A broker with its doors: started in a thread of this process, or as this process's main loop, and stopped cleanly.

    with Service(BrokerSettings(folder), ServerSettings(port=0)) as service:      # a thread of its own
        service.address                                                           # ("127.0.0.1", 40123)

    service = Service(settings, server)                                           # the calling thread
    service.serve(ready=lambda service: print(service.port))                      # until SIGTERM or SIGINT

Stopping takes no more connections, makes durable what was taken, answers whoever waited for that, and lets go of the
folder. Requests that only wait for something to happen are not answered.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Final, Self

from penstock.broker.server.limits import ServerLimits
from penstock.clock import Clock
from penstock.errors import ClosedError, ConfigError

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.filters import EntryFilter, FilterFactory
    from penstock.broker.groups.settings import GroupSettings
    from penstock.broker.server.kafka.door import KafkaDoor
    from penstock.broker.server.loop import Loop
    from penstock.broker.settings import BrokerSettings

_log = logging.getLogger("penstock.broker")

LOOPBACK: Final = "127.0.0.1"
KAFKA_PORT: Final = 9092
PORT_MAX: Final = 65535
FLUSH_TURNS: Final = 20
FLUSH_S: Final = 0.05
STOP_S: Final = 30.0
UPKEEP_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where a broker listens. Only this machine can reach it unless told otherwise."""

    host: str = LOOPBACK
    port: int = KAFKA_PORT
    """0 takes a free one."""
    advertised: tuple[str, int] | None = None
    """Where clients are told to find the broker; as it listens, or as they found it, if None."""
    http_port: int | None = None
    """For statistics, metrics and health; None for none, 0 takes a free one."""
    limits: ServerLimits = field(default_factory=ServerLimits)

    def __post_init__(self) -> None:
        for port in (self.port, self.http_port or 0):
            if not 0 <= port <= PORT_MAX:
                raise ConfigError(f"there is no port {port}")


class Upkeep:
    """The broker's part in each turn of the loop: what was handed over is let go each time, the rest now and then.

    Looking through all deadlines takes longer than storing a batch. So a broker that is busy does it every `UPKEEP_S`;
    one that is idle is woken once more after its last work, and then when something is due.
    """

    __slots__ = ("_broker", "_look_at")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._look_at = 0.0

    def __call__(self, now: float, now_ms: int) -> float | None:
        """Do what must be done at the end of this turn; when to come back."""
        if now < self._look_at:
            self._broker.commit()
            return self._look_at
        self._look_at = now + UPKEEP_S
        return self._broker.turn(now, now_ms)


class Service:
    """One broker that serves. `start` and `stop` from any thread, once; `serve` on the main thread."""

    def __init__(
        self,
        settings: BrokerSettings,
        server: ServerSettings | None = None,
        *,
        clock: Clock | None = None,
        filters: Mapping[str, FilterFactory | EntryFilter] | None = None,
        groups: GroupSettings | None = None,
    ) -> None:
        self.settings = settings
        self.server = server or ServerSettings()
        self._clock = clock
        self._filters = filters
        self._groups = groups
        self._broker: Broker | None = None
        self._loop: Loop | None = None
        self._door: KafkaDoor | None = None
        self._port = 0
        self._http_port: int | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None

    def __repr__(self) -> str:
        state = "stopped" if self._loop is None else f"at {self.server.host}:{self._port}"
        return f"<Service of {self.settings.folder}, {state}>"

    # What it is

    @property
    def port(self) -> int:
        """Where Kafka's protocol is spoken, once it has started."""
        return self._port

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of Kafka's protocol."""
        return self.server.host, self._port

    @property
    def http_port(self) -> int | None:
        """Where HTTP is spoken, if it is."""
        return self._http_port

    @property
    def is_serving(self) -> bool:
        """Whether it has started, and not stopped."""
        return self._loop is not None

    @property
    def broker(self) -> Broker:
        """The broker, for the loop thread only: see `call`."""
        if self._broker is None:
            raise ClosedError("the broker is not running")
        return self._broker

    @property
    def loop(self) -> Loop:
        """The loop, for its own thread only."""
        if self._loop is None:
            raise ClosedError("the broker is not running")
        return self._loop

    # In a thread

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Serve in a thread of its own; returns when clients can connect, or raises what keeps it from starting."""
        if self._thread is not None:
            raise ClosedError("a broker is started once")
        self._thread = threading.Thread(target=self._run_thread, name="penstock-broker", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Stop serving, and return when the folder is free; nothing if it has stopped already."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(OSError):  # it has just closed by itself
                loop.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                raise ClosedError(f"the broker did not stop within {timeout_s} s")

    def call(self, function: Callable[[Broker], None]) -> None:
        """Have this called with the broker on its own thread, soon; from any thread."""
        loop, broker = self._loop, self._broker
        if loop is None or broker is None:
            raise ClosedError("the broker is not running")
        loop.call(lambda: function(broker))

    def _run_thread(self) -> None:
        try:
            with self._open():
                self._ready.set()
                self._run()
        except BaseException as error:  # noqa: BLE001  # told by whoever waits for the start, or logged
            if self._ready.is_set():
                _log.critical("the broker of %s has failed", self.settings.folder, exc_info=error)
            self._failure = error
        finally:
            self._ready.set()

    # On this thread

    def serve(self, ready: Callable[[Service], None] | None = None, signals: bool = True) -> None:
        """Serve on the calling thread until `stop` or, with `signals`, SIGTERM or SIGINT; `ready` is called first."""
        from penstock.broker.server.kafka import codec

        codec.SCHEMAS.alone = True
        with self._open(), self._stopped_by(signals):
            if ready is not None:
                ready(self)
            self._run()

    @contextlib.contextmanager
    def _stopped_by(self, signals: bool) -> Iterator[None]:
        """SIGTERM and SIGINT stop it, whichever thread of this process the system gives them to.

        Only the main thread runs handlers, and one that waits in the loop does not notice what another thread was
        given: the write to the pipe, done by whoever is given the signal, wakes it.
        """

        def stop(number: int, frame: FrameType | None) -> None:
            self.stop()

        if not signals:
            yield
            return
        with self._woken_by_signals():
            before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    @contextlib.contextmanager
    def _woken_by_signals(self) -> Iterator[None]:
        loop = self.loop
        woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

        def quiet() -> None:
            os.read(woken, 1 << 10)

        loop.watch_descriptor(woken, quiet)
        before = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.unwatch_descriptor(woken)
            os.close(woken)
            os.close(waker)

    # The loop thread

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        from penstock.broker.broker import Broker
        from penstock.broker.server.kafka.batch_judge import FORMAT
        from penstock.broker.server.kafka.door import KafkaDoor
        from penstock.broker.server.loop import Loop

        with contextlib.ExitStack() as stack:
            loop = Loop(self.server.limits, self._clock)
            stack.callback(loop.close)
            times = (loop.now, loop.now_ms)
            broker = Broker(self.settings, [FORMAT], *times, filters=self._filters, groups=self._groups)
            stack.callback(broker.close)
            loop.watch_descriptor(broker.fileno(), broker.finish)
            loop.add_duty(Upkeep(broker))
            self._door = KafkaDoor(broker, loop, self.server.advertised)
            self._port = self._door.open(self.server.host, self.server.port)
            self._broker, self._loop = broker, loop
            if self.server.http_port is not None:
                self._open_http(broker, loop, self.server.http_port)
            try:
                yield
            finally:
                self._broker = self._loop = None
                loop.unwatch_descriptor(broker.fileno())

    def _open_http(self, broker: Broker, loop: Loop, port: int) -> None:
        from penstock.broker.reporter import Reporter
        from penstock.broker.server.http import HttpDoor
        from penstock.broker.server.pages import Pages

        reporter = Reporter(broker, loop, broker.groups, lambda: len(loop.connections))
        pages = Pages(reporter, broker.topics, self._why_unready)
        self._http_port = loop.listen(HttpDoor(loop, pages), self.server.host, port)

    def _why_unready(self) -> str | None:
        loop, broker = self._loop, self._broker
        if loop is None or broker is None or loop.is_stopping:
            return "the broker is stopping"
        broken = broker.committer.broken
        return None if broken is None else str(broken)

    def _run(self) -> None:
        loop, broker = self._loop, self._broker
        assert loop is not None
        assert broker is not None
        loop.run()
        loop.shut()
        ticket = broker.committer.submit()
        broker.commit()
        broker.committer.wait(ticket)
        broker.finish()
        for _ in range(FLUSH_TURNS):
            if not loop.has_unsent:
                break
            loop.turn(FLUSH_S)
