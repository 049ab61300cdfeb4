"""Fetch: entries out of the log, at once or when there are enough of them.

    asked -> looked at: enough bytes, an error, no time to wait, nothing asked for  -> answered
                        else                                                        -> waits
    waits -> more can be read, or an entry that was put off is due: looked at again
          -> its time is over: answered with what there is
          -> the connection closes: forgotten

While it waits it holds nothing but its place in the lists of its partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.server.kafka.codes import NONE
from penstock.broker.server.kafka.dispatch import Context
from penstock.broker.server.kafka.fetch_answer import Piece, write_fetch
from penstock.broker.server.kafka.fetch_parts import Fetches, Part, Parts
from penstock.broker.server.kafka.fetch_read import Reading
from penstock.broker.server.kafka.fetch_request import NO_SESSION, FetchRequest, read_fetch
from penstock.broker.server.outbox import release

if TYPE_CHECKING:
    from penstock.broker.server.timers import Timer

WAIT_MS_MAX: Final = 3_600_000


def fetch(body: memoryview, at: int, context: Context) -> None:
    """Answer with entries, now or later."""
    request = read_fetch(body, at, context.version)
    session = context.session
    if session.fetches is None:
        session.fetches = Fetches(context.door.session_room)
    parts = session.fetches.find(request)
    if isinstance(parts, int):
        context.slot.answer(write_fetch(context.version, context.correlation, parts, NO_SESSION, ()))
        return
    Fetch(context, request, parts).begin()


class Fetch:
    """One request, until it is answered. Runs on: the loop thread."""

    __slots__ = ("_context", "_deadline", "_parts", "_request", "_timer", "_woken")

    def __init__(self, context: Context, request: FetchRequest, parts: Parts) -> None:
        self._context = context
        self._request = request
        self._parts = parts
        self._deadline = context.now + min(max(request.wait_ms, 0), WAIT_MS_MAX) / 1000
        self._timer: Timer | None = None
        self._woken = False

    def __repr__(self) -> str:
        return f"<Fetch of {self._context!r}, {len(self._parts)} partitions, until {self._deadline}>"

    def begin(self) -> None:
        """Answer at once, or wait."""
        if not self._try():
            self._context.slot.abandoned = self._end

    def wake(self) -> None:
        """More can be read: look again when this turn's work is done."""
        if not self._woken:
            self._woken = True
            self._context.connection.soon(self._look_again)

    def _look_again(self) -> None:
        self._woken = False
        if self._context.slot.is_open:
            self._try()

    def _due(self) -> None:
        self._timer = None
        self._try()

    def _try(self) -> bool:
        """Look at the partitions, and answer if that is enough; whether it was."""
        context, request, parts = self._context, self._request, self._parts
        now = context.door.loop.now
        reading = Reading(context, request, now)
        told = self._look(reading)
        enough = reading.size >= request.bytes_min or reading.failed or reading.has_judged
        if enough or now >= self._deadline or not len(parts):
            self._answer(told, now)
            return True
        _release(told)
        self._wait(reading.again_at)
        return False

    def _look(self, reading: Reading) -> list[tuple[Part, Piece]]:
        """What there is to tell; the slices in it are to be released."""
        parts = self._parts
        told: list[tuple[Part, Piece]] = []
        try:
            for part in parts.candidates():
                piece = reading.read(part)
                has_news = reading.has_more or part.told != (piece.visible, piece.start)
                parts.looked(part, has_news)
                if has_news or not parts.is_incremental:
                    told.append((part, piece))
        except BaseException:
            _release(told)
            raise
        return told

    def _answer(self, told: list[tuple[Part, Piece]], now: float) -> None:
        self._end()
        for part, piece in told:
            part.told = (piece.visible, piece.start)
            if piece.size and part.seen is not None:
                self._parts.sent(part)
                part.seen.stats.delivered(piece.entries, piece.messages, piece.size, now)
        context, pieces = self._context, [piece for _part, piece in told]
        context.slot.answer(write_fetch(context.version, context.correlation, NONE, self._parts.id, pieces))

    def _wait(self, again_at: float | None) -> None:
        """Be woken when more can be read, when a filter has put off an entry for long enough, or when time is over."""
        self._parts.wait(self)
        when = self._deadline if again_at is None else min(self._deadline, again_at)
        if self._timer is not None:
            if self._timer.when == when:
                return
            self._timer.cancel()
        self._timer = self._context.connection.at(when, self._due)

    def _end(self) -> None:
        """It is answered, or nobody wants the answer any more."""
        self._parts.finish()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _release(told: list[tuple[Part, Piece]]) -> None:
    for _part, piece in told:
        release(piece.records)
