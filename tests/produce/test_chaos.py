"""Several producers on a cluster in trouble, in seeded runs: see `chaos` for what happens and what is checked.

A run that fails says how to repeat it: `Chaos(seed, twin).run()`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from penstock.wire.kafka.codes import TABLE
from tests.produce.chaos import Chaos, check_runs
from tests.produce.kits import load_kit

CHUNK = 50
CHUNKS = [("_lane", start) for start in range(0, 800, CHUNK)] + [("lane", start) for start in range(0, 200, CHUNK)]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Callbacks throw on purpose."""
    logger = logging.getLogger("penstock")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


@pytest.mark.parametrize(("twin", "start"), CHUNKS)
def test_producers_on_a_cluster_in_trouble_keep_their_word(twin: str, start: int) -> None:
    check_runs(start, start + CHUNK, load_kit(twin).name)


@pytest.mark.stress
@pytest.mark.parametrize(("twin", "start"), CHUNKS)
def test_producers_on_a_cluster_in_trouble_keep_their_word_in_many_more_runs(twin: str, start: int) -> None:
    check_runs(10_000 + 10 * start, 10_000 + 10 * (start + CHUNK), load_kit(twin).name)


@pytest.mark.parametrize("number", [row.number for row in TABLE])
def test_every_code_that_a_broker_can_answer_leaves_each_message_with_a_true_outcome(number: int) -> None:
    """Half of all batches get this answer, nothing else goes wrong."""
    run = Chaos(number + 1_000_000, steps=8)
    for name in vars(run.trouble):
        setattr(run.trouble, name, 0.0)
    run.late = False
    numbers = (45, 47, 59, 90)
    run.model.refusal = lambda broker, topic, partition, stored: (
        number if run.chance.random() < run.trouble.codes and not (stored and number in numbers) else 0
    )
    run.trouble.codes = 0.5
    run.run()
