"""A batch unopened: what giving it another header costs beside copying it; and what making one costs."""

from __future__ import annotations

from functools import partial

from bench.micro.kernels import ours
from bench.micro.messages import BATCH_BYTES, TIME_MS, make
from bench.results import Bar, Row, Section
from bench.timing import Clock, Contestant, interleave
from penstock.wire.compression import Codec
from penstock.wire.entry import Stamp
from penstock.wire.kafka.header import peek, rewrite_header, split, verify

NAME = "micro.header"
COMPARED = """\
`rewrite_header` (a stored batch gets another producer, epoch and sequence, and a checksum to match) beside two copies
of the batch, `bytes(view)` twice, in CPU time of the measuring thread. The ratio tells which part of the two copies it
costs. Below it, without a peer: `peek` at a batch, `split` of a fetched buffer, and a batch of 256 KB of JSON from its
first message on: framed by `extend`, sealed and stamped, per codec at its default level. Compression gives the framed
records back, so that they are framed anew each time; without a codec nearly all of the time is framing.
"""
SIZES = {"16 KB": 16_384, "64 KB": 65_536, "1 MB": 1_048_576}
STAMP = Stamp(producer=4711, epoch=3, sequence=120_000, transactional=True)


def run(rounds: int, sizes: dict[str, int] | None = None, seal_bytes: int = BATCH_BYTES) -> Section:
    """Time what is done to a batch as a whole."""
    rows = []
    for case, size in (sizes or SIZES).items():
        bar = Bar("<", 1) if case == "1 MB" else None
        rows.append(rewrite_row(case, batch_of(size), rounds, bar))
    small = batch_of(min((sizes or SIZES).values()))
    rows += [
        told_row("peek, 16 KB", partial(peek, small), rounds),
        told_row("split, 64 batches of 16 KB", partial(split, small * 64), rounds),
        *seal_rows(seal_bytes, rounds),
    ]
    return Section(NAME, COMPARED, rows, rounds, ("crc32c", "cramjam"))


def batch_of(size: int) -> bytes:
    """A stored batch of about this size."""
    batch = ours().BatchBuffer(size)
    batch.extend(make(size // 100, 100, with_properties=False).values, event_times_ms=TIME_MS)
    batch.seal()
    return b"".join(batch.stamp(Stamp(producer=1, epoch=0, sequence=0)))


def rewrite_row(case: str, entry: bytes, rounds: int, bar: Bar | None) -> Row:
    """Time another header beside two copies."""
    check(entry)
    view = memoryview(entry)
    contestants: dict[str, Contestant] = {
        "rewrite": partial(rewrite_header, entry, STAMP),
        "copies": partial(copy_twice, view),
    }
    timings = interleave(contestants, rounds, Clock.THREAD)
    costs = {name: f"{timings.median(name) * 1e6:.1f} µs" for name in contestants}
    ratio = timings.ratio("rewrite", "copies")
    return Row(f"rewrite_header, {case}", costs["rewrite"], "two copies", costs["copies"], ratio, bar)


def copy_twice(view: memoryview) -> None:
    """Two copies of the batch."""
    bytes(view)
    bytes(view)


def check(entry: bytes) -> None:
    """The batch with its new header must be whole, stamped, and hold the same records."""
    head, payload = rewrite_header(entry, STAMP)
    written = head + payload
    header = verify(written)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == STAMP[:3]
    assert written[len(head) :] == entry[len(head) :]


def told_row(case: str, call: Contestant, rounds: int) -> Row:
    """A figure without a peer."""
    timings = interleave({case: call}, rounds, Clock.THREAD)
    return Row(case, f"{timings.median(case) * 1e6:.2f} µs")


def seal_rows(bytes_max: int, rounds: int) -> list[Row]:
    """What each codec costs for the same full batch."""
    batch = ours().BatchBuffer(bytes_max)
    values = make(bytes_max // 100, 100, with_properties=False).values

    def seal(codec: Codec) -> int:
        batch.clear()
        batch.extend(values, event_times_ms=TIME_MS)
        batch.seal(codec)
        return sum(map(len, batch.stamp()))

    sizes = {codec: seal(codec) / batch.size for codec in Codec}
    seals: dict[str, Contestant] = {codec.value: partial(seal, codec) for codec in Codec}
    timings = interleave(seals, rounds, Clock.THREAD)
    return [
        Row(
            f"extend, seal and stamp, {codec.value}, to {sizes[codec]:.0%}",
            f"{timings.median(codec.value) * 1e6:.0f} µs",
        )
        for codec in Codec
    ]
