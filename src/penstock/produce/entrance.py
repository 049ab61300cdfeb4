"""The careful way through `send`: a message is checked, routed, and put into a batch; and what to do without memory.

Above the client's limit (`total_bytes_max`) there are three answers (`when_full`):

    wait     until there is room, at most `full_timeout_ms`; whoever may not block is told how much is wanted
    direct   the message is sent at once, alone, after all that is open in its lane; when such messages take as much
             again as the limit, it waits like the others
    fail     the message is refused

Runs on: any thread.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import ClosedError, MessageError, MessageTooLargeError, NoRoomError
from penstock.produce.batch import Batch, SealReason
from penstock.produce.incoming import Incoming, check
from penstock.produce.kernel import Receipt
from penstock.produce.lanes import HEADER_BYTES, Lanes
from penstock.produce.memory import Purse


class RoomWanted(Exception):  # noqa: N818  # asks for something rather than telling of an error
    """There is no memory for a message now; whoever cannot block waits for this much and brings it along."""

    def __init__(self, message: Incoming, size: int) -> None:
        super().__init__(size)
        self.message = message
        self.size = size


class Entrance:
    """Where messages come in that the fast way does not take."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._options = lanes.options
        self._budget = lanes.accumulator.budget
        self.may_block = True
        """Whether `send` waits for room itself; else it raises `RoomWanted`."""
        lanes.intake.slow = self.send

    def send(self, *arguments: Any) -> Receipt:
        """Take one message, with all checks; the arguments are those of `Intake.send`, the last one the callback."""
        *fields, callback = arguments
        self._lanes.check_open()
        message = check(self._lanes.wire, *fields)
        self._check(message)
        receipt = self.put(message)
        if callback is not None:
            receipt.add_done_callback(callback)
        return receipt

    def put(self, message: Incoming, prepaid: int = 0) -> Receipt:
        """Put a checked message into a batch; `prepaid` bytes were reserved for it already."""
        purse = Purse(self._budget, prepaid)
        try:
            while True:
                message = self._lanes.directions.routed(message)
                receipt = self._try(message, purse)
                if receipt is None and self._options.when_full == "direct":
                    receipt = self._put_directly(message)
                if receipt is not None:
                    return receipt
                purse.add(self._wait_for_room(message))
        finally:
            purse.empty()

    def find_room(self, size: int) -> None:
        """Reserve so many bytes, waiting for them; raises when there are none in time, or nobody may wait."""
        self.press()
        try:
            self._lanes.home.check_may_wait()
        except ClosedError as error:
            raise self._no_room("the I/O thread, as in a callback, cannot wait for any") from error
        if not self._budget.reserve(size, self.full_timeout):
            raise self.no_room_in_time()

    @property
    def full_timeout(self) -> float:
        """How many seconds a message waits for room."""
        return self._options.full_timeout_ms / 1000

    def press(self) -> None:
        """There is no room: fail if that is what was asked for, else let what is open leave."""
        if self._options.when_full == "fail":
            raise self._no_room("when_full=fail")
        self._lanes.accumulator.press()

    def no_room_in_time(self) -> NoRoomError:
        """The error of a message that waited for room in vain."""
        return self._no_room(f"none became free within full_timeout_ms={self._options.full_timeout_ms}")

    def _try(self, message: Incoming, purse: Purse) -> Receipt | None:
        """The receipt; None when there is no memory."""
        lanes = self._lanes
        detached: list[Batch] = []
        try:
            with lanes.lock:
                lanes.check_open()
                message = lanes.directions.routed(message)
                shared = lanes.restriction.shared(message.properties) if lanes.restriction else ()
                while True:
                    lane = lanes.choose_locked(message.partition)
                    batch = lanes.fitting_locked(lane, message.fields, shared, detached)
                    if batch is None:
                        size = purse.pay(lanes.likely_size(lane), lanes.opening_size(message.size))
                        if not size:
                            return None
                        batch = lanes.open_locked(lane, message.fields, shared, size)
                    index = lanes.append_locked(lane, batch, message)
                    if index >= 0:
                        receipt = Receipt(batch, index)
                        lanes.maybe_due_locked(lane, batch, detached)
                        return receipt
                    if not lanes.grow(batch, message.size):
                        lanes.detach_full_locked(lane, batch, detached)
        finally:
            lanes.seal_all(detached)

    def _wait_for_room(self, message: Incoming) -> int:
        size = self._lanes.room_wanted(message.size)
        if not self.may_block:
            self.press()
            raise RoomWanted(message, size)
        self.find_room(size)
        return size

    def _put_directly(self, message: Incoming) -> Receipt | None:
        """Send a message alone, after all that is open in its lane; None when there is no memory for that either."""
        lanes = self._lanes
        detached: list[Batch] = []
        try:
            with lanes.lock:
                lanes.check_open()
                message = lanes.directions.routed(message)
                lane = lanes.choose_locked(message.partition)
                size = message.size + HEADER_BYTES
                if not self._budget.try_exceed(size):
                    return None
                lanes.detach_open_locked(lane, SealReason.MEMORY, detached)
                shared = lanes.restriction.shared(message.properties) if lanes.restriction else ()
                batch = lanes.open_locked(lane, message.fields, shared, size)
                lanes.append_locked(lane, batch, message)
                lanes.detach_locked(lane, batch, SealReason.DIRECT, detached)
        finally:
            lanes.seal_all(detached)
        return Receipt(batch, 0)

    def _no_room(self, why: str) -> NoRoomError:
        twice = "twice " if self._options.when_full == "direct" else ""
        return NoRoomError(
            f"{self._budget.used} of {twice}{self._budget.bytes_max} bytes (total_bytes_max) hold messages that are "
            f"not acknowledged yet, and {why}: send slower, or raise total_bytes_max"
        )

    def _check(self, message: Incoming) -> None:
        most = self._options.message_bytes_max
        if message.size > most:
            raise MessageTooLargeError(
                f"message: it takes {message.size} bytes with key, properties and framing, and message_bytes_max is "
                f"{most}: send less, or raise it together with the broker's limit"
            )
        if message.fields.wait_for_store is False and self._options.idempotence:
            raise MessageError("wait_for_store: False needs idempotence=False, since numbered messages need acks=all")
