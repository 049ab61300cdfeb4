"""Group commit: beside a Kafka that does not sync, and beside one that syncs every batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bench.broker.pair import KAFKA, OURS, WARMUP, both, broker_cost, case_of, megabytes
from bench.broker.produce import LARGE_BATCH, bulk, confluent
from bench.broker.requests import COST, RATE, Shape, send
from bench.peers.load import Load
from bench.produce.contest import Measure, contest
from bench.produce.send import scaled
from bench.results import Bar, Row, Section

NAME = "broker.durable"
ROUNDS = 5
COMPARED = """\
`penstock serve --fsync group`: nothing is acknowledged or read before it is synced. With batches of 1 MB it stands
beside a real Kafka of one node at its defaults, which leaves syncing to the system. With requests of 16 KB on 16
partitions, four connections with five in flight each, it stands beside the same Kafka with `flush.messages=1` on the
topic, which syncs every batch. Beside it, only told: `--fsync always`, and Kafka that does not sync.
"""
GROUP, ALWAYS, SYNCED = OURS, f"{OURS} always", "Kafka, flush.messages=1"
UNSYNCED_BAR, SYNCED_BAR = Bar("≥", 0.8), Bar("≥", 3)
LOADS = (Load(2_000_000, 100, 1, "lz4"), Load(400_000, 1000, 1, "none"), Load(400_000, 1000, 16, "none"))
SMALL, LARGE = Shape(16_384, 8_000, 4, 16), Shape(LARGE_BATCH, 400)
MEGABYTES = Measure(
    "rate", lambda figures: figures.more["bytes"] / figures.seconds / 1e6, lambda rate: f"{rate:,.0f} MB/s"
)


def run(rounds: int, share: float = 1.0, warmup: Sequence[Load] = WARMUP) -> Section:
    """Large batches, then small requests."""
    told: list[Row] = []
    with both(warmup, ("group", "always")) as brokers:
        ours, kafka, always = brokers[GROUP], brokers[KAFKA], brokers[ALWAYS]
        for load in LOADS:
            some = Load(scaled(load.messages, share), load.value_bytes, load.partitions, load.compression)
            for client, job in (("confluent-kafka", confluent), ("own bulk send", bulk)):
                pair = {OURS: partial(job, ours, some, LARGE_BATCH), KAFKA: partial(job, kafka, some, LARGE_BATCH)}
                found = contest(pair, rounds)
                case = f"{case_of(some, LARGE_BATCH)}: {client}"
                told.append(found.row(case, OURS, KAFKA, megabytes(some.value_bytes), UNSYNCED_BAR))
                told.append(found.row(case, OURS, KAFKA, broker_cost(some.value_bytes)))
        raw = contest({OURS: partial(send, ours, share, LARGE), KAFKA: partial(send, kafka, share, LARGE)}, rounds)
        told.append(raw.row("1 MB requests by hand, 1 partition", OURS, KAFKA, MEGABYTES, UNSYNCED_BAR))
        small = contest(
            {
                OURS: partial(send, ours, share, SMALL),
                ALWAYS: partial(send, always, share, SMALL),
                SYNCED: partial(send, kafka, share, SMALL, {"flush.messages": "1"}),
                KAFKA: partial(send, kafka, share, SMALL),
            },
            rounds,
        )
        case = "16 KB requests, 16 partitions"
        told.append(small.row(case, OURS, SYNCED, RATE, SYNCED_BAR))
        told += [small.row(case, OURS, other, measure) for other in (ALWAYS, KAFKA) for measure in (RATE, COST)]
    return Section(NAME, COMPARED, told, rounds)
