"""Chooses the kernel: the compiled twin where it was built, else the plain one; PENSTOCK_KERNEL=plain insists.

Runs once, at import. Everybody else takes `RecordBuffer` and `gather` from here.
"""

from __future__ import annotations

import os

from penstock.errors import ConfigError

wanted = os.environ.get("PENSTOCK_KERNEL", "")
if wanted not in ("", "plain", "compiled"):
    raise ConfigError(f"PENSTOCK_KERNEL: expected plain or compiled, found {wanted!r}")

KERNEL = "plain"
if wanted != "plain":
    try:
        from penstock.wire.kafka._batch import RecordBuffer, gather

        KERNEL = "compiled"
    except ImportError as error:
        if wanted == "compiled":
            raise ConfigError(
                "PENSTOCK_KERNEL: compiled is wanted, but it was not built; is there a C compiler?"
            ) from error
if KERNEL == "plain":
    from penstock.wire.kafka.batch import RecordBuffer, gather

__all__ = ["KERNEL", "RecordBuffer", "gather"]
