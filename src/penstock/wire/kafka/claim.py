"""A batch's claim about its messages' properties, on a wire whose batch header has no room for one.

The claim is the first header of the first record, so that ordinary clients see one more header on one message and
nothing else, and a bit in the batch's attributes says that it is there. The header alone would not do: whoever consumes
and produces again copies headers into batches of another make-up, where the claim would be a lie and a filter would
drop messages. The bit is not copied by others; brokers keep it as long as they keep the batch, and clear it when
they build the batch anew. Without the bit nothing is claimed, and nothing needs to be decompressed to know it.

    name   penstock.claim
    value  UTF-8 JSON: {"same": {"region": "eu", "version": null}, "listed": {"city": ["oslo", null]}}

Null under "same": no message has a value that the policy lists. Null in a list: some messages lack the property. A
claim that cannot be read claims nothing, since a filter that knows nothing delivers.
"""

from __future__ import annotations

import json

from penstock.errors import DecodeError
from penstock.wire.compression import Codec, decompress_start
from penstock.wire.entry import NO_CLAIM, PropertyClaim
from penstock.wire.kafka.framing import first_header, frame_header, record_size

NAME = "penstock.claim"
CLAIM_BYTES_MAX = 8192
FIRST_LOOK_BYTES = 512


def frame_claim(claim: PropertyClaim) -> bytes:
    """The claim as a framed header; empty when nothing is claimed or it would be larger than a reader looks for."""
    if not claim:
        return b""
    said: dict[str, object] = {}
    if claim.same:
        said["same"] = dict(claim.same)
    if claim.listed:
        said["listed"] = {name: sorted(values, key=lambda v: (v is None, v)) for name, values in claim.listed.items()}
    text = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
    framed = frame_header(NAME, text)
    return framed if len(framed) <= CLAIM_BYTES_MAX else b""


def read_claim(codec: Codec, payload: memoryview, bytes_max: int) -> PropertyClaim:
    """The claim of a batch whose bit is set, from no more of the payload than its first compressed block."""
    try:
        start = _start(codec, payload, FIRST_LOOK_BYTES, bytes_max)
        whole = record_size(start)
        if whole > len(start):
            start = _start(codec, payload, min(whole, bytes_max), bytes_max)
    except DecodeError:
        return NO_CLAIM
    name, text = first_header(start) or (None, None)
    if name != NAME.encode() or text is None or len(text) > CLAIM_BYTES_MAX:
        return NO_CLAIM
    return _parse(text)


def _start(codec: Codec, payload: memoryview, wanted: int, bytes_max: int) -> memoryview:
    return payload if codec is Codec.NONE else memoryview(decompress_start(codec, payload, wanted, bytes_max))


def _parse(text: bytes) -> PropertyClaim:
    try:
        said = json.loads(text)
        same = {name: _value(value) for name, value in said.get("same", {}).items()}
        listed = {name: _values(values) for name, values in said.get("listed", {}).items()}
    except (ValueError, AttributeError, TypeError, RecursionError):
        return NO_CLAIM
    return PropertyClaim(same, listed)


def _values(values: object) -> frozenset[str | None]:
    if isinstance(values, list):
        return frozenset(map(_value, values))
    raise TypeError


def _value(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise TypeError
