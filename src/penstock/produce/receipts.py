"""What becomes of a message, told to whoever holds its receipt.

A receipt points at a parcel (a batch, as receipts see it) and an index in it. Nothing is done per message when a
parcel is settled: its one verdict is set, then those who wait for it are told. The outcome of a single message is made
when it is asked for:

    Stored     the message's id, from the parcel's first position and the index
    Spoilt     some messages are to blame; each hears its own word
    Moved      the messages went on in other parcels, where the receipt looks again
    an error   the same cause for all

Two threads never miss each other: a verdict is set before listeners are taken, and a listener is put down before the
verdict is looked at. Taking one is atomic, so each is told once.

Runs on: whoever asks; listeners are told on the thread that settles, mostly the I/O thread.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from penstock.errors import BrokerError, PenstockError, RefusedError
from penstock.message import MessageId, Position
from penstock.wire.columns import Int32s
from penstock.wire.protocol import Spoilt, Stored, Verdict

_log = logging.getLogger("penstock")
_registering = threading.Lock()


def _renew_lock() -> None:
    global _registering
    _registering = threading.Lock()  # in a child of `fork()` whoever held the other one is gone


os.register_at_fork(after_in_child=_renew_lock)


class Home(Protocol):
    """The client that a parcel belongs to."""

    def check_may_wait(self) -> None:
        """Raise when the caller would wait for ever: on the I/O thread itself, or in a child of `fork()`."""


class ParcelLike(Protocol):
    """What is asked of a parcel here; the kernel's twins are it."""

    topic: str
    partition: int
    verdict: Any
    listeners: deque[Listener]
    loops: Any
    watcher: Callable[[Any], None] | None
    """Is told when somebody begins to wait, if there is one."""
    home: Any


class ReceiptLike(Protocol):
    """What is asked of a receipt here."""

    @property
    def parcel(self) -> Any:
        """The parcel it points at."""

    @property
    def index(self) -> int:
        """Which message of it."""


Listener: TypeAlias = tuple[Callable[..., None], ReceiptLike | None]
"""What is called when the verdict is there: with the receipt, or with nothing where there is none."""


class Moved(NamedTuple):
    """The messages of a parcel went on in other ones, or each has an error of its own."""

    parts: Sequence[ParcelLike]
    part_of: Int32s
    """For each message the number of its part; -1: it has an error."""
    place_in: Int32s
    """For each message its index in that part."""
    errors: Mapping[int, PenstockError]

    def find(self, index: int) -> tuple[ParcelLike, int] | PenstockError:
        """Where a message went."""
        part = int(self.part_of[index])
        return (self.parts[part], int(self.place_in[index])) if part >= 0 else self.errors[index]


Settlement: TypeAlias = Verdict | Moved


def position_of(first: Position | None, index: int) -> Position | None:
    """The position of a message, from its batch's first and its index."""
    if first is None:
        return None
    return first + index if isinstance(first, int) else (*first, index)


def announce(parcel: ParcelLike) -> None:
    """Tell all who wait; the verdict is set."""
    while True:
        try:
            told, receipt = parcel.listeners.popleft()
        except IndexError:
            return
        if receipt is not None and isinstance(parcel.verdict, Moved):
            _follow(told, receipt)
        else:
            _tell(told, receipt)


def listen(parcel: ParcelLike, listener: Listener) -> None:
    """Have somebody told of the verdict, at once if it is there."""
    parcel.listeners.append(listener)
    if parcel.verdict is not None:
        announce(parcel)


def when_done(told: Callable[[Any], None], receipt: ReceiptLike) -> None:
    """Have `told` called with the receipt once its message has its outcome."""
    _follow(told, receipt)


def is_done(parcel: ParcelLike, index: int) -> bool:
    """Whether a message has its outcome."""
    return pending(parcel, index) is None


def result_of(parcel: ParcelLike, index: int, timeout: float | None) -> MessageId:
    """A message's id, or its error raised; waits for at most `timeout` seconds, then raises TimeoutError."""
    outcome = outcome_of(parcel, index, timeout)
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def outcome_of(parcel: ParcelLike, index: int, timeout: float | None) -> MessageId | PenstockError:
    """A message's id or its error, waited for."""
    deadline = time.monotonic() + timeout if timeout else timeout
    while (found := pending(parcel, index)) is not None:
        if not wait_for(found, deadline - time.monotonic() if deadline else deadline):
            raise TimeoutError(f"no outcome within {timeout} s: the message is still on its way")
    return _outcome(parcel, index)


def awaited(parcel: ParcelLike, index: int) -> Generator[Any, None, MessageId]:
    """The same for `await`: suspends until the outcome is there. Cancelling one waiter harms no other."""
    while (found := pending(parcel, index)) is not None:
        yield from future_of(found)
    return result_of(parcel, index, 0)


def until_settled(parcel: ParcelLike) -> Generator[Any, None, None]:
    """Suspend until this parcel has its own verdict."""
    if parcel.verdict is None:
        yield from future_of(parcel)


def future_of(parcel: ParcelLike) -> asyncio.Future[None]:
    """A future of the loop that runs here, done when this parcel has its verdict.

    Each who waits has one of his own; all in one loop are done by one call.
    """
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    futures = _futures_of(parcel, loop)
    futures.append(future)
    if len(futures) == 1:
        listen(parcel, (lambda: _wake(parcel, loop), None))
        if parcel.watcher is not None:
            loop.call_soon(parcel.watcher, parcel)  # after all tasks whose turn it is have sent what they will
    return future


def _futures_of(parcel: ParcelLike, loop: asyncio.AbstractEventLoop) -> list[asyncio.Future[None]]:
    """Those who wait for a parcel in this loop, which is the one that runs here."""
    loops = parcel.loops
    if loops is None or loop not in loops:
        parcel.home.check_may_wait()
        with _registering:
            loops = parcel.loops = {} if parcel.loops is None else parcel.loops
            loops[loop] = []
    futures: list[asyncio.Future[None]] = loops[loop]
    return futures


def wait_for(parcel: ParcelLike, timeout: float | None) -> bool:
    """Wait for a parcel's own verdict."""
    if parcel.verdict is not None:
        return True
    if timeout is not None and timeout <= 0:
        return False
    parcel.home.check_may_wait()
    if parcel.watcher is not None:
        parcel.watcher(parcel)
    settled = threading.Event()
    listener: Listener = (settled.set, None)
    listen(parcel, listener)
    if settled.wait(timeout):
        return True
    try:
        parcel.listeners.remove(listener)
    except ValueError:
        return True  # it was being told just now
    return False


def pending(parcel: ParcelLike, index: int) -> ParcelLike | None:
    """The parcel without a verdict that a message's outcome hangs on; None when it has its outcome."""
    while isinstance(parcel.verdict, Moved):
        found = parcel.verdict.find(index)
        if isinstance(found, PenstockError):
            return None
        parcel, index = found
    return parcel if parcel.verdict is None else None


def _outcome(parcel: ParcelLike, index: int) -> MessageId | PenstockError:
    verdict: Settlement = parcel.verdict
    while isinstance(verdict, Moved):
        found = verdict.find(index)
        if isinstance(found, PenstockError):
            return own(found)
        parcel, index = found
        verdict = parcel.verdict
    if isinstance(verdict, Stored):
        return MessageId(parcel.topic, parcel.partition, position_of(verdict.first, index))
    if isinstance(verdict, Spoilt):
        return _blamed(verdict, index)
    return own(verdict)


def own(error: PenstockError) -> PenstockError:
    """A copy for each who asks: raising adds a traceback to an error, and one object cannot have several."""
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return own


def blame(verdict: Spoilt, index: int) -> PenstockError:
    """The error of a message that is to blame."""
    error, word = verdict.error, verdict.messages[index]
    text = f"{error}: message {index} of its batch: {word}" if word else str(error)
    if not isinstance(error, BrokerError):
        return type(error)(text)
    return type(error)(text.removeprefix(f"{error.code}: "), error.code)


def _blamed(verdict: Spoilt, index: int) -> PenstockError:
    if index in verdict.messages:
        return blame(verdict, index)
    code = verdict.error.code if isinstance(verdict.error, BrokerError) else ""
    return RefusedError("not stored: other messages of its batch were refused; send it again", code)


def _follow(told: Callable[..., None], receipt: ReceiptLike) -> None:
    found = pending(receipt.parcel, receipt.index)
    if found is None:
        _tell(told, receipt)
    else:
        listen(found, (told, receipt))


def _tell(told: Callable[..., None], receipt: ReceiptLike | None) -> None:
    try:
        if receipt is None:
            told()
        else:
            told(receipt)
    except Exception:  # noqa: BLE001  # of a user's callback; nobody else is to suffer for it
        _log.exception("a callback raised; all others are told all the same")


def _wake(parcel: ParcelLike, loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.call_soon_threadsafe(_resolve, parcel, loop)
    except RuntimeError:
        _log.debug("a loop was closed before its receipts were settled")
        parcel.loops.pop(loop)


def _resolve(parcel: ParcelLike, loop: asyncio.AbstractEventLoop) -> None:
    _resolve_all(iter(parcel.loops.pop(loop)), loop)


def _resolve_all(futures: Iterator[asyncio.Future[None]], loop: asyncio.AbstractEventLoop) -> None:
    """Wake those who wait; the kernel's tasks go on right here, and may raise what ends the loop, as Ctrl-C does."""
    try:
        for future in futures:
            if not future.done():
                future.set_result(None)
    except BaseException:
        loop.call_soon(_resolve_all, futures, loop)
        raise
