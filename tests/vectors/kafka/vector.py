"""A captured segment with what official tools say is in it, and the JSON file it is kept in.

One file per client (and one for what the broker made itself):

    client, broker, settings  who made the bytes, and what all its producers were told
    messages                  for each case, what was sent: key, value (hex, or hex and how often it is repeated),
                              headers, time_ms (null: the client's clock)
    vectors                   one object each:
        codec, case, settings     with which further settings the case was sent, and those of the topic
        segment                   the bytes of the partition's log file, base64
        batches                   what Kafka's own DumpLogSegments says: a row for each, its fields those of Batch
        read                      what confluent-kafka's consumer read: offset, time_ms, index into the case's messages
        committed                 where the case has transactions, the offsets that a consumer of committed ones read

Never imports the project: what a vector says must not depend on what is tested with it.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.vectors.kafka.cases import Sent

HERE = Path(__file__).resolve().parent
REPEATED_BYTES_MIN = 1024
PATTERN_BYTES = 16
EXPANDED_DEPTH = 3


class Batch(NamedTuple):
    """One batch in the words of DumpLogSegments; `marker` is the outcome that a control batch tells."""

    base: int
    last: int
    messages: int
    size: int
    codec: str
    flags: tuple[str, ...]
    producer: int
    epoch: int
    sequence: int
    max_time_ms: int
    delete_horizon_ms: int | None = None
    marker: str | None = None


FLAGS_AT = Batch._fields.index("flags")


@dataclass(frozen=True, slots=True)
class Read:
    """One message as the consumer gave it; `sent` is what it was when it was sent."""

    offset: int
    time_ms: int
    sent: Sent


@dataclass(frozen=True, slots=True)
class Vector:
    """One segment; `sent` is all messages of the case, `read` those that are in the segment."""

    file: str
    codec: str
    case: str
    settings: dict[str, Any]
    segment: bytes
    batches: tuple[Batch, ...]
    sent: tuple[Sent, ...]
    read: tuple[Read, ...]
    committed: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """Its name in test reports."""
        return f"{self.file}/{self.codec}/{self.case}"


def load(path: Path) -> list[Vector]:
    """The vectors of one file."""
    document = json.loads(path.read_text())
    messages = {case: [_to_sent(row) for row in rows] for case, rows in document["messages"].items()}
    return [_to_vector(document["file"], messages[row["case"]], row) for row in document["vectors"]]


def load_all() -> list[Vector]:
    """The vectors of all files."""
    return [vector for path in sorted(HERE.glob("*.json")) for vector in load(path)]


def save(path: Path, made_by: dict[str, Any], vectors: list[Vector]) -> None:
    """Write one file."""
    document = {
        **made_by,
        "messages": {each.case: [_from_sent(message) for message in each.sent] for each in vectors},
        "vectors": [_from_vector(vector) for vector in vectors],
    }
    path.write_text(_render(document) + "\n")


def _render(node: Any, depth: int = 0) -> str:
    """JSON with a line for each message and for each field of a vector."""
    if depth == EXPANDED_DEPTH or not isinstance(node, dict | list):
        return json.dumps(node, ensure_ascii=False, separators=(",", ":"))
    pad = " " * (depth + 1)
    rows = [f"{pad}{_render(each, depth + 1)}" for each in node]
    if isinstance(node, dict):
        rows = [f"{pad}{json.dumps(name)}: {_render(each, depth + 1)}" for name, each in node.items()]
    opening, closing = "{}" if isinstance(node, dict) else "[]"
    return f"{opening}\n" + ",\n".join(rows) + f"\n{pad[1:]}{closing}"


def _from_sent(sent: Sent) -> dict[str, Any]:
    return {
        "key": _from_bytes(sent.key),
        "value": _from_bytes(sent.value),
        "headers": [[name, _from_bytes(value)] for name, value in sent.headers],
        "time_ms": sent.time_ms,
    }


def _to_sent(row: dict[str, Any]) -> Sent:
    headers = tuple((name, _to_bytes(value)) for name, value in row["headers"])
    return Sent(_to_bytes(row["value"]), _to_bytes(row["key"]), headers, row["time_ms"])


def _from_bytes(data: bytes | None) -> str | list[Any] | None:
    if data is None or len(data) < REPEATED_BYTES_MIN:
        return None if data is None else data.hex()
    pattern, times = data[:PATTERN_BYTES], len(data) // PATTERN_BYTES
    assert pattern * times == data
    return [pattern.hex(), times]


def _to_bytes(text: str | list[Any] | None) -> bytes | None:
    if text is None:
        return None
    return bytes.fromhex(text) if isinstance(text, str) else bytes.fromhex(text[0]) * int(text[1])


def _from_vector(vector: Vector) -> dict[str, Any]:
    row: dict[str, Any] = {
        "codec": vector.codec,
        "case": vector.case,
        "settings": vector.settings,
        "segment": base64.b64encode(vector.segment).decode(),
        "batches": vector.batches,
        "read": [[read.offset, read.time_ms, vector.sent.index(read.sent)] for read in vector.read],
    }
    return row if vector.committed is None else row | {"committed": list(vector.committed)}


def _to_vector(file: str, sent: list[Sent], row: dict[str, Any]) -> Vector:
    return Vector(
        file,
        row["codec"],
        row["case"],
        row["settings"],
        base64.b64decode(row["segment"]),
        tuple(Batch(*batch)._replace(flags=tuple(batch[FLAGS_AT])) for batch in row["batches"]),
        tuple(sent),
        tuple(Read(offset, time_ms, sent[index]) for offset, time_ms, index in row["read"]),
        tuple(row["committed"]) if "committed" in row else None,
    )
