"""A replicator as a program: it copies what its argument says, until it is killed, and writes down where it is.

Exit status: `FENCED` when another instance took its place, `AGAIN` when it could not begin for a reason that passes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys

import penstock
from penstock.errors import FencedError, PenstockError
from penstock.replicate.copying import Copying
from penstock.wire.kafka import versions

FENCED, AGAIN = 3, 75

_log = logging.getLogger("copier")


def main(text: str) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    told = json.loads(text)
    if told.pop("old_way"):
        versions.SELF_ENLISTING = 99  # what a cluster would have to say; the same as tests of transactions do
    try:
        copying = penstock.copy(told.pop("source"), told.pop("target"), **told)
    except (PenstockError, TimeoutError) as error:
        _log.info("cannot begin: %r", error)
        return AGAIN if isinstance(error, TimeoutError) or error.retriable else 1
    try:
        watch(copying)
    except PenstockError as error:
        _log.info("cannot go on: %r, %s", error, copying.stats())
        return FENCED if isinstance(error, FencedError) else 1
    return 0


def watch(copying: Copying) -> None:
    """Wait for ever, and tell now and then where it is."""
    while not copying.is_over:
        _log.info("%s", copying.stats())
        with contextlib.suppress(TimeoutError):
            copying.wait(1.0)
    copying.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
