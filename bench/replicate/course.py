"""One source topic, and everybody who can copy it: a call of each gives its figures, and leaves the target empty."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import penstock
from bench.peers import load as loads
from bench.peers import mirror_maker, python_peers
from bench.peers.measure import Figures
from bench.replicate.jobs import Way
from bench.replicate.pair import Held, Pair, clear, held
from bench.replicate.stock import Stock
from penstock.replicate.verify import verify

WARMUP_SHARE = 2 / 3
"""MirrorMaker compiles itself as it runs: what it does until so much of its load is there is not counted."""


class Course:
    """A topic of the source on a pair of clusters."""

    def __init__(self, pair: Pair, stock: Stock, topic: str, *, is_verified: bool = False) -> None:
        """The first copy is compared with the source, message by message, unless that `is_verified` already."""
        self.pair = pair
        self.stock = stock
        self.topic = topic
        self._is_verified = is_verified

    def __repr__(self) -> str:
        return f"<Course {self.stock}, {self.topic}>"

    def ours(self, *, wanted: int | None = None, is_weighed: bool = False, **options: Any) -> Figures:
        """Our replicator with these options; the target must hold as many messages as are wanted, or the source has."""
        target_topic = loads.new_topic(self.pair.target, self.stock.load, self.topic)
        way = Way(options, self.pair.small_topic, is_weighed)
        figures = self.pair.job("copy", self.stock, (self.topic, target_topic), way.settings)
        found = self._check(target_topic, self.stock.messages if wanted is None else wanted)
        figures.more["batches"] = found.batches
        if not self._is_verified:
            self.verify(target_topic, options.get("filter"))
            self._is_verified = True
        clear(self.pair.target)
        return figures

    def one_by_one(self, messages: int) -> Figures:
        """A reader, and a producer that sends each message with a request of its own."""
        part = replace(self.stock, messages=messages)
        target_topic = loads.new_topic(self.pair.target, part.load, self.topic)
        figures = self.pair.job("one by one", part, (self.topic, target_topic), {})
        self._check(target_topic, messages)
        clear(self.pair.target)
        return figures

    def mirror(self, messages: int) -> Figures:
        """confluent-kafka, its consumer tuned, message by message."""
        load = replace(self.stock.load, messages=messages)
        figures = python_peers.mirror(self.pair.source, self.pair.target, load, self.topic)
        clear(self.pair.target)
        return figures

    def mirror_maker(self, messages: int, *, tuned: bool) -> Figures:
        """MirrorMaker 2, counted once it is warm."""
        load = replace(self.stock.load, messages=messages)
        warmup = int(messages * WARMUP_SHARE)
        figures = mirror_maker.copy(
            self.pair.source, self.pair.target, load, tuned=tuned, topic=self.topic, warmup=warmup
        )
        clear(self.pair.target)
        return figures

    def _check(self, target_topic: str, wanted: int) -> Held:
        found = held(self.pair.target, target_topic)
        if found.messages != wanted:
            raise RuntimeError(f"{target_topic} holds {found.messages} messages instead of {wanted}")
        return found

    def verify(self, target_topic: str, condition: str | None = None) -> None:
        """Compare the source with its copy, message by message; raises where they differ."""
        with (
            penstock.connect(self.pair.source.url, client_id="verify-source") as source,
            penstock.connect(self.pair.target.url, client_id="verify-target") as target,
        ):
            result = verify(source, target, self.topic, target_topic, filter=condition)
        if not result.equal:
            raise RuntimeError(str(result))
