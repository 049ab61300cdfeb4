"""What is sent for each case: fixed messages, so that a vector captured anew differs in times and producer ids only.

Values are repetitive, because librdkafka sends a batch uncompressed when compressing does not make it smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COMMIT, ABORT = "commit", "abort"

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Sent:
    """One message; without a time the client takes its clock's."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """Messages that leave in one batch per flush; `outcomes` ends a transaction after each.

    `after` is sent at the end by another producer, which is neither idempotent nor compresses.
    """

    flushes: tuple[tuple[Sent, ...], ...]
    idempotent: bool = False
    outcomes: tuple[str, ...] = ()
    codecs: tuple[str, ...] = CODECS
    after: tuple[Sent, ...] = ()

    @property
    def messages(self) -> list[Sent]:
        """All of them, in order."""
        return [message for flush in (*self.flushes, self.after) for message in flush]


def _text(*words: str) -> bytes:
    return " ".join(words * 4).encode()


NOON_MS = 1_700_000_000_000
SEVERAL: tuple[Header, ...] = (
    ("source", b"sensor"),
    ("größe", "groß".encode()),
    ("repeated", b"1"),
    ("repeated", b"2"),
    ("null", None),
    ("empty", b""),
)

PLAIN = Case(((Sent(_text("plain", "one")), Sent(_text("plain", "two")), Sent(_text("plain", "three"))),))
KEYS = Case(
    (
        (
            Sent(_text("first", "of", "a"), b"key-a"),
            Sent(_text("first", "of", "b"), b"key-b"),
            Sent(_text("second", "of", "a"), b"key-a"),
            Sent(_text("not", "text"), b"\xff\x00\xfe"),
        ),
    )
)
HEADERS = Case(
    (
        (
            Sent(_text("no", "header")),
            Sent(_text("several", "headers"), b"key", SEVERAL),
            Sent(_text("odd", "headers"), None, (("bytes", b"\xff\x00\x80"), ("", b"no name"), ("日本", None))),
        ),
    )
)
NULLS = Case(
    (
        (
            Sent(None, b"null value"),
            Sent(b"", b"empty value"),
            Sent(_text("null", "key"), None),
            Sent(_text("empty", "key"), b""),
            Sent(b"", b""),
            Sent(b"", None),
            Sent(None, b""),
        ),
    )
)
TIMES = Case(
    (
        (
            Sent(_text("base", "time"), time_ms=NOON_MS),
            Sent(_text("later", "time"), time_ms=NOON_MS + 86_400_000),
            Sent(_text("earlier", "time"), time_ms=NOON_MS - 300_000),
            Sent(_text("earliest", "time"), time_ms=1),
            Sent(_text("same", "time"), time_ms=NOON_MS),
        ),
    )
)
IDEMPOTENT = Case(
    (
        (Sent(_text("sequence", "0")), Sent(_text("sequence", "1")), Sent(_text("sequence", "2"))),
        (Sent(_text("sequence", "3")), Sent(_text("sequence", "4"))),
    ),
    idempotent=True,
)
TRANSACTIONS = Case(
    (
        (Sent(_text("committed", "0"), b"key"), Sent(_text("committed", "1"), None, SEVERAL)),
        (Sent(_text("aborted", "2"), b"key"), Sent(_text("aborted", "3"))),
        (Sent(_text("committed", "4")),),
    ),
    outcomes=(COMMIT, ABORT, COMMIT),
)
# More than one block of lz4 (64 KB) and more than one chunk of snappy (32 KB).
LARGE = Case(((Sent(b"0123456789abcdef" * 2080, b"key"), Sent(b"fedcba9876543210" * 2080)),), codecs=CODECS[1:])
# Only confluent-kafka sends a message that has neither key nor value.
NOTHING = Case(((Sent(None), Sent(_text("between", "nothings")), Sent(None)),))

# The cleaner keeps the last message of each key: offsets 2 and 3 of the first batch, whose last offset stays 4.
THINNED = Case(
    (
        (
            Sent(_text("old", "a"), b"a"),
            Sent(_text("old", "b"), b"b"),
            Sent(_text("new", "a"), b"a"),
            Sent(_text("only", "c"), b"c", SEVERAL),
            Sent(_text("newer", "b"), b"b"),
        ),
        (Sent(_text("newest", "b"), b"b"), Sent(_text("only", "d"), b"d")),
    )
)
# A tombstone gives its batch a delete horizon, which takes the place of the base timestamp.
TOMBSTONES = Case(
    (
        (
            Sent(_text("to", "be", "deleted"), b"a", time_ms=NOON_MS),
            Sent(_text("to", "be", "kept"), b"b", time_ms=NOON_MS + 5),
            Sent(None, b"a", time_ms=NOON_MS + 1),
        ),
    )
)
# Of an idempotent producer the cleaner keeps the last batch as a header, even if no message is left.
EMPTIED = Case(
    ((Sent(_text("to", "be", "replaced"), b"a"), Sent(_text("to", "be", "replaced"), b"b")),),
    idempotent=True,
    codecs=("none",),
    after=(Sent(_text("replaced"), b"a"), Sent(_text("replaced"), b"b")),
)
CLEANED_TRANSACTIONS = Case(
    (
        (Sent(_text("committed", "a"), b"a"), Sent(_text("committed", "b"), b"b")),
        (Sent(_text("aborted", "a"), b"a"), Sent(_text("aborted", "c"), b"c")),
        (Sent(_text("committed", "b"), b"b", SEVERAL), Sent(None, b"d")),
    ),
    outcomes=(COMMIT, ABORT, COMMIT),
    codecs=("none",),
)

CASES = {
    "plain": PLAIN,
    "keys": KEYS,
    "headers": HEADERS,
    "nulls": NULLS,
    "times": TIMES,
    "idempotent": IDEMPOTENT,
    "transactions": TRANSACTIONS,
    "large": LARGE,
}
COMPACTED_CASES = {
    "thinned": THINNED,
    "tombstones": TOMBSTONES,
    "emptied": EMPTIED,
    "cleaned-transactions": CLEANED_TRANSACTIONS,
}
