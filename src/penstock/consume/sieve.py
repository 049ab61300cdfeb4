"""A property filter on the messages of an opened batch.

No step is taken per message: of each property that the filter looks at, the values are told apart by columns, and
each combination of values that occurs is judged once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.wire.entry import PropertyClaim
from penstock.wire.property_filter import PropertyCondition

Mask = npt.NDArray[np.bool_]


def matching(condition: PropertyCondition, claim: PropertyClaim, properties: pa.MapArray) -> Mask:
    """Which messages match, given their properties and what their batch claims.

    Of a property that a message has twice, the last value counts, as in a mapping.
    """
    names = [name for name in condition.names if name not in claim.same]
    if not names:
        return np.full(len(properties), condition.matches(None, claim))
    numbers, values = zip(*(_numbered(properties, name) for name in names), strict=True)
    combinations, which = np.unique(np.stack(numbers), axis=1, return_inverse=True)
    verdicts = [
        condition.matches({name: values[i][row[i]] for i, name in enumerate(names)}, claim)
        for row in combinations.T.tolist()
    ]
    mask: Mask = np.array(verdicts, bool)[which.reshape(-1)]
    return mask


def _numbered(properties: pa.MapArray, name: str) -> tuple[npt.NDArray[np.int64], list[Any]]:
    """For each message the number of its value of this property, and the values by number; number 0 is none."""
    numbers = np.zeros(len(properties), np.int64)
    pairs = np.flatnonzero(pc.equal(properties.keys, name).to_numpy(zero_copy_only=False))
    if not len(pairs):
        return numbers, [None]
    told_apart = properties.items.take(pa.array(pairs)).dictionary_encode()
    found = told_apart.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    owners = np.searchsorted(properties.offsets.to_numpy(), pairs, side="right") - 1
    numbers[owners] = found + 1
    return numbers, [None, *told_apart.dictionary.to_pylist()]
