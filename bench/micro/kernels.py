"""Our writer and reader of batches on each kernel, in one process."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.wire.kafka import batch, buffer, kernel, records

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.wire.columns import Columns


class Ours(NamedTuple):
    """A writer and a reader that stand on one of the kernels."""

    BatchBuffer: type[buffer.BatchBuffer]
    decode: Callable[..., Columns]


def ours() -> Ours:
    """As the product has it; it must be the compiled kernel, for which the bars were set."""
    if kernel.KERNEL != "compiled":
        raise SystemExit("bench: the bars are the compiled kernel's, and it was not built; is there a C compiler?")
    return Ours(buffer.BatchBuffer, records.decode)


def plain() -> Ours:
    """On the plain twin: the same two files loaded once more, with the twin where the kernel would be."""
    chosen = kernel.RecordBuffer, kernel.gather
    surroundings: Any = kernel
    surroundings.RecordBuffer, surroundings.gather = batch.RecordBuffer, batch.gather
    try:
        return Ours(_loaded_anew(buffer).BatchBuffer, _loaded_anew(records).decode)
    finally:
        surroundings.RecordBuffer, surroundings.gather = chosen


def _loaded_anew(module: ModuleType) -> Any:
    name = f"{module.__name__}_on_plain_kernel"
    spec = importlib.util.spec_from_file_location(name, Path(str(module.__file__)))
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    sys.modules[name] = fresh
    spec.loader.exec_module(fresh)
    return fresh
