"""Chooses the send path: the compiled twin where it was built, else the plain one; PENSTOCK_KERNEL=plain insists.

Runs once, at import. Everybody else takes these names from here. That PENSTOCK_KERNEL has a sensible value is checked
where the wires choose their kernels.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING or os.environ.get("PENSTOCK_KERNEL") == "plain":
    from penstock.produce.lane import NEVER_NS, RESTRICTED_MAX, Intake, Lane, Parcel, Receipt, partitions_of, survey
else:
    try:
        from penstock.produce._lane import (
            NEVER_NS,
            RESTRICTED_MAX,
            Intake,
            Lane,
            Parcel,
            Receipt,
            partitions_of,
            survey,
        )
    except ImportError:
        from penstock.produce.lane import NEVER_NS, RESTRICTED_MAX, Intake, Lane, Parcel, Receipt, partitions_of, survey

__all__ = ["NEVER_NS", "RESTRICTED_MAX", "Intake", "Lane", "Parcel", "Receipt", "partitions_of", "survey"]
