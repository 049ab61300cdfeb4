"""The main job so far, for real and on this machine: messages in one at a time, batches all the way, nothing lost.

Starts the embedded broker, sends orders one by one into batches of one region each, kills the broker with `kill -9` in
the middle and starts it again, reads one region back with a filter that skips the other batches unopened, and proves by
the contents that just the right messages arrived, each once, in order.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

import penstock
from penstock.broker.process import BrokerProcess
from penstock.wire.kafka.kernel import KERNEL

MESSAGES = 200_000
PARTITIONS = 4
REGIONS = ("eu", "us", "ap")
WANTED = "eu"
TOPIC = "orders"
LIMIT_S = 60.0

Order = tuple[bytes, bytes, str]

console = Console(highlight=False)


def main() -> int:
    """Run the steps and show what each did; 1 if the proof fails."""
    console.print(f"[bold]Penstock[/bold], {KERNEL} kernel\n")
    table = Table(
        "step", "messages", "batches", "seconds", "msg/s", title="One message at a time in, batches all the way"
    )
    step("starting a broker: a process of its own, a durable log in a temporary folder")
    orders = list(make_orders(random.Random(7)))
    with BrokerProcess() as broker, penstock.connect(broker.url) as client:
        client.create_topic(TOPIC, PARTITIONS)
        sent = send(client, broker, orders, table)
        equal = sent and read_back(client, orders, table)
    console.print(table)
    console.print(
        f"\nthe messages of region {WANTED}: {'equal, each once, in order' if equal else 'NOT EQUAL'}, "
        "after a kill -9 of the broker"
    )
    return 0 if equal else 1


def make_orders(chance: random.Random) -> Iterator[Order]:
    """Orders that come in runs of one region, as they do when regions wake and sleep."""
    made = 0
    while made < MESSAGES:
        region = chance.choice(REGIONS)
        for _ in range(min(chance.randint(2_000, 20_000), MESSAGES - made)):
            customer = chance.randrange(10_000)
            amount = chance.randrange(100, 99_999)
            text = f'{{"order": {made}, "customer": {customer}, "amount": {amount}, "region": "{region}"}}'
            yield text.encode(), str(customer).encode(), region
            made += 1


def send(client: Any, broker: BrokerProcess, orders: Sequence[Order], table: Table) -> bool:
    """Send each order by itself, the broker being killed in the middle; whether every one was acknowledged."""
    step(f"sending {len(orders):,} orders one at a time, with a key and a region, into batches that share the region")
    policy = penstock.BatchPolicy(same_properties={"region": list(REGIONS)})
    began = time.monotonic()
    with client.producer(TOPIC, batch=policy) as producer:
        receipts = []
        for number, (value, key, region) in enumerate(orders):
            if number == len(orders) // 2:
                step("killing the broker with kill -9, and starting it again")
                broker.restart()
            receipts.append(producer.send(value, key=key, properties={"region": region}))
        positions = {(place.partition, place.position) for place in (receipt.result(LIMIT_S) for receipt in receipts)}
        stats = producer.stats().total
    row(table, "sent, acknowledged", len(positions), stats.batches, time.monotonic() - began)
    return len(positions) == len(orders)


def read_back(client: Any, orders: Sequence[Order], table: Table) -> bool:
    """Read one region by a filter; whether that is what was sent of it, in the order of each partition."""
    step(f"reading back with the filter `region = {WANTED}`: batches of other regions are skipped unopened")
    began = time.monotonic()
    with client.reader(TOPIC, end="latest", filter=f"region = {WANTED}") as reader:
        found = reader.read_all(LIMIT_S)
        stats = reader.stats()
    row(table, "read as columns", len(found), stats.entries_opened, time.monotonic() - began)
    row(table, "skipped unopened", stats.messages_filtered, stats.entries_filtered, None)
    wanted = {value: number for number, (value, _, region) in enumerate(orders) if region == WANTED}
    numbers = [wanted.get(value, -1) for value in found["value"].to_pylist()]
    return sorted(numbers) == sorted(wanted.values()) and is_ordered(found, numbers)


def is_ordered(found: pa.Table, numbers: Sequence[int]) -> bool:
    """Whether every partition holds its messages in the order in which they were sent."""
    ordered = pa.table({"partition": found["partition"], "number": numbers})
    parts = [
        ordered.filter(pc.equal(ordered["partition"], number))["number"].to_pylist() for number in range(PARTITIONS)
    ]
    return all(part == sorted(part) for part in parts)


def step(text: str) -> None:
    """Say what comes next."""
    console.print(f"[dim]> {text}[/dim]")


def row(table: Table, name: str, messages: int, batches: int, seconds: float | None) -> None:
    """Add what a step did."""
    took = ("", "") if seconds is None else (f"{seconds:.1f}", f"{messages / seconds:,.0f}")
    table.add_row(name, f"{messages:,}", f"{batches:,}", *took)


if __name__ == "__main__":
    sys.exit(main())
