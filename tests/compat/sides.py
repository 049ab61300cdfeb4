"""The two brokers that a script runs on, and how it runs on both at once."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tests.compat import differences

KAFKA, PENSTOCK = "Kafka", "Penstock"
LIMIT_S = 60.0
SCRIPT_LIMIT_S = 240.0
Outcome = dict[str, Any]
T = TypeVar("T")


class Broker(Protocol):
    """What a script may know of a broker's process."""

    @property
    def bootstrap(self) -> str: ...
    def address(self, node: int) -> tuple[str, int]: ...


@dataclass(frozen=True, slots=True)
class Side:
    """One broker as a script sees it."""

    label: str
    broker: Broker
    case: str

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    @property
    def address(self) -> tuple[str, int]:
        return self.broker.address(1)

    def name(self, part: str) -> str:
        """A name for a topic, group or transaction that no other test has."""
        return f"{self.case}-{part}"


Script = Callable[[Side], Outcome]


@dataclass(frozen=True, slots=True)
class Sides:
    """Both brokers, for one test."""

    brokers: dict[str, Broker]
    test: str

    def alike(self, script: Script) -> Outcome:
        """Run the script on both sides at once; what it tells must be the same, but for what is listed."""
        case = re.sub(r"[^\w.-]", "_", self.test.removeprefix("test_"))
        sides = [Side(label, broker, case) for label, broker in self.brokers.items()]
        running = {side.label: _run(script, side) for side in sides}
        done, _ = wait(running.values(), SCRIPT_LIMIT_S)
        assert len(done) == len(running), f"the script does not end on {[n for n in running if running[n] not in done]}"
        failures = {label: error for label, future in running.items() if (error := future.exception())}
        if failures:
            raise AssertionError(f"the script failed on {' and on '.join(failures)}") from next(iter(failures.values()))
        told = {label: future.result() for label, future in running.items()}
        wrong = differences.judge(self.test, told[KAFKA], told[PENSTOCK], differences.listed())
        assert not wrong, "\n".join(wrong)
        return told[KAFKA]


def _run(script: Script, side: Side) -> Future[Outcome]:
    """Run the script on a thread that nobody waits for longer than the test does."""
    future: Future[Outcome] = Future()

    def work() -> None:
        try:
            future.set_result(script(side))
        except BaseException as error:  # noqa: BLE001  # raised again by the test
            future.set_exception(error)

    threading.Thread(target=work, name=side.label, daemon=True).start()
    return future


def text(data: bytes | None) -> str | None:
    """Bytes as an outcome shows them; none stay none."""
    return None if data is None else data.decode("utf-8", "backslashreplace")


def until(look: Callable[[], T], good: Callable[[T], bool], limit_s: float = LIMIT_S) -> T:
    """Look again and again until what is seen is good; what was seen last when it never is."""
    over = time.monotonic() + limit_s
    while not good(seen := look()) and time.monotonic() < over:
        time.sleep(0.02)
    return seen


def shared_out(parts: Iterable[Iterable[int]], count: int) -> bool:
    """Whether these partitions are all there are, each once, and nobody has none."""
    held = [sorted(part) for part in parts]
    return all(held) and sorted(number for part in held for number in part) == list(range(count))
