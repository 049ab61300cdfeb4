"""Our client at work with one message in each request, and how many writes that took."""

from __future__ import annotations

from typing import Any

from bench.peers.load import DISTINCT, values
from bench.peers.measure import Figures
from bench.peers.python_jobs import BATCH, Job, parts
from bench.produce import ours
from penstock.net.pipeline import Pipeline


def gate(job: Job) -> Figures:
    """`send`, and `result` of every receipt; the connections' own counters tell the writes."""
    pipelines = noted_pipelines()
    with ours.connected(job) as (_, producer):
        pool = values(job.load.value_bytes) * (BATCH // DISTINCT)
        each = producer.send
        before = sum(pipeline.writes for pipeline in pipelines)
        meter = job.meter()
        asked = ours.observe(
            parts(pool, job.load.messages, BATCH), lambda part: [each(value) for value in part], ours.ask_receipts
        )
        figures = meter.figures(ours.NAME, job.name, asked)
        writes = sum(pipeline.writes for pipeline in pipelines) - before
        figures.more.update(writes=writes, per_write=asked / writes)
        return figures


def noted_pipelines() -> list[Pipeline]:
    """Every connection that is made from now on."""
    made: list[Pipeline] = []
    begin = Pipeline.__init__

    def noting(self: Pipeline, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        made.append(self)

    Pipeline.__init__ = noting  # type: ignore[method-assign]
    return made
