"""What exists so far, for real and on this machine: messages in one at a time, batches all the way, nothing lost.

Sends messages one by one into batches of one region each, judges the batches unopened, copies the accepted ones
unopened to another producer's numbering, and proves by the contents that just the right messages arrived.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from penstock.wire.compression import Codec
from penstock.wire.entry import PropertyClaim, Stamp
from penstock.wire.kafka.buffer import BatchBuffer
from penstock.wire.kafka.header import peek, rewrite_header, split, verify
from penstock.wire.kafka.kernel import KERNEL
from penstock.wire.kafka.records import decode

MESSAGES = 200_000
REGIONS = ("eu", "us", "ap")
WANTED = "eu"
NOW_MS = 1_700_000_000_000

Result = TypeVar("Result")
Sent = tuple[bytes, bytes, str]

console = Console(highlight=False)


def main() -> int:
    """Run the steps and show what each did; 1 if the proof fails."""
    console.print(f"[bold]Penstock[/bold], {KERNEL} kernel\n")
    traffic = list(make_traffic(random.Random(7)))
    table = Table(
        "step", "messages", "batches", "bytes", "msg/s", title="One message at a time in, batches all the way"
    )

    step("packing messages one at a time into batches that share a region, lz4")
    log, seconds = timed(lambda: b"".join(pack(traffic)))
    entries = split(log)
    raw = sum(len(value) for value, _, _ in traffic)
    row(table, "packed", len(traffic), len(entries), len(log), len(traffic) / seconds)

    step(f"judging every batch by its header: region = {WANTED}")
    accepted, seconds = timed(lambda: [entry for entry in entries if peek(entry).claim.same.get("region") == WANTED])
    skipped = len(entries) - len(accepted)
    row(table, "accepted unopened", count(accepted), len(accepted), sum(map(len, accepted)), len(traffic) / seconds)

    step("copying the accepted batches unopened, numbered for another producer")
    copied, seconds = timed(lambda: copy(accepted))
    row(table, "copied unopened", count(copied), len(copied), sum(map(len, copied)), count(copied) / seconds)

    step("reading the copies into Arrow columns and comparing them with what was sent")
    read, seconds = timed(
        lambda: pa.concat_tables(pa.Table.from_batches([decode(entry).to_record_batch()]) for entry in copied)
    )
    row(table, "read as columns", len(read), len(copied), read.nbytes, len(read) / seconds)
    console.print(table)

    expected = [(value, key) for value, key, region in traffic if region == WANTED]
    equal = read["value"].to_pylist() == [v for v, _ in expected] and read["key"].to_pylist() == [
        k for _, k in expected
    ]
    console.print(
        f"\n{raw:,} bytes of values became {len(log):,} in {len(entries)} batches of {len(traffic) // len(entries):,}"
    )
    console.print(f"{skipped} of {len(entries)} batches were skipped without being opened")
    console.print(
        f"the {len(read):,} messages of region {WANTED}: {'equal, each once, in order' if equal else 'NOT EQUAL'}"
    )
    return 0 if equal else 1


def make_traffic(chance: random.Random) -> Iterator[Sent]:
    """Orders that come in runs of one region, as they do when regions wake and sleep."""
    made = 0
    while made < MESSAGES:
        region = chance.choice(REGIONS)
        for _ in range(chance.randint(500, 5_000)):
            customer = chance.randrange(10_000)
            amount = chance.randrange(100, 99_999)
            text = f'{{"order": {made}, "customer": {customer}, "amount": {amount}, "region": "{region}"}}'
            yield text.encode(), str(customer).encode(), region
            made += 1


def pack(traffic: list[Sent]) -> Iterator[bytes]:
    """Append each message on its own; a full batch or another region seals the batch."""
    batch = BatchBuffer()
    of: str | None = None
    for number, (value, key, region) in enumerate(traffic):
        if region != of and batch.count:
            yield sealed(batch, of)
        of = region
        properties = {"region": region}
        if batch.append(value, key, properties, NOW_MS + number) < 0:
            yield sealed(batch, of)
            batch.append(value, key, properties, NOW_MS + number)
    yield sealed(batch, of)


def sealed(batch: BatchBuffer, region: str | None) -> bytes:
    """The batch as it leaves; the buffer is open again."""
    batch.seal(Codec.LZ4, claim=PropertyClaim(same={"region": region}))
    whole = b"".join(batch.stamp())
    batch.clear()
    return whole


def copy(entries: list[memoryview]) -> list[bytes]:
    """Each batch with another producer's header; the payload's bytes are not touched."""
    copies, sequence = [], 0
    for entry in entries:
        copies.append(b"".join(rewrite_header(entry, Stamp(producer=4711, epoch=0, sequence=sequence))))
        sequence += verify(copies[-1]).count
    return copies


def count(entries: list[bytes] | list[memoryview]) -> int:
    """Messages in these batches, by their headers."""
    return sum(peek(entry).count for entry in entries)


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """What the work gives, and the seconds it took."""
    begin = time.perf_counter()
    return work(), time.perf_counter() - begin


def step(text: str) -> None:
    """Say what comes next."""
    console.print(f"[dim]> {text}[/dim]")


def row(table: Table, name: str, messages: int, batches: int, size: int, rate: float) -> None:
    """Add what a step did."""
    table.add_row(name, f"{messages:,}", f"{batches:,}", f"{size:,}", f"{rate:,.0f}")


if __name__ == "__main__":
    sys.exit(main())
