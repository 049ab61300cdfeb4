"""The two twins of the kernel, and how tests tell what they did: the result, or the error's type and text."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from penstock.wire.columns import BufferColumns, Columns
from penstock.wire.kafka import batch, buffer, kernel, records

PLAIN = "penstock.wire.kafka.batch"
COMPILED = "penstock.wire.kafka._batch"
SEAM = "penstock.wire._buffer"


class Twin(NamedTuple):
    """One of the two kernels."""

    name: str
    RecordBuffer: type[batch.RecordBuffer]
    gather: Callable[[bytes, int, int, int], BufferColumns]


class Kit(NamedTuple):
    """What stands on a kernel, standing on a certain one."""

    BatchBuffer: type[buffer.BatchBuffer]
    decode: Callable[..., Columns]
    decode_buffers: Callable[..., BufferColumns]


def load_twin(name: str) -> Twin:
    """A twin; where the compiled one was not built the test is skipped, unless everything is required."""
    module = _built(name)
    return Twin(name.rpartition(".")[2], module.RecordBuffer, module.gather)


def load_seam() -> ModuleType:
    """The compiled seam of buffers, likewise."""
    return _built(SEAM)


def _built(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if os.environ.get("PENSTOCK_REQUIRE_ALL") and shutil.which(os.environ.get("CC", "cc").split()[0]):
            pytest.fail(f"the compiled kernel was not built although there is a C compiler: {error}", pytrace=False)
        pytest.skip(f"the compiled kernel was not built: {error}")


def kit_of(twin: Twin) -> Kit:
    """`buffer` and `records` loaded once more, with this twin where the process' own kernel would be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "RecordBuffer", twin.RecordBuffer)
        patch.setattr(kernel, "gather", twin.gather)
        writer, reader = loaded_anew(buffer, twin.name), loaded_anew(records, twin.name)
    return Kit(writer.BatchBuffer, reader.decode, reader.decode_buffers)


def loaded_anew(module: ModuleType, suffix: str) -> ModuleType:
    """The same file as another module."""
    name = f"{module.__name__}_on_{suffix}"
    spec = importlib.util.spec_from_file_location(name, Path(str(module.__file__)))
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    sys.modules[name] = fresh
    spec.loader.exec_module(fresh)
    return fresh


def outcome(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What a call returned, or the type and text of its error."""
    try:
        return call(*arguments, **named)
    except Exception as error:  # noqa: BLE001
        return type(error), str(error)


def state_of(records_of: batch.RecordBuffer) -> tuple[Any, ...]:
    """All that can be seen of a buffer."""
    with records_of.records() as view:
        framed = bytes(view)
    return (
        framed,
        records_of.count,
        len(records_of),
        records_of.size,
        records_of.first_time_ms,
        records_of.min_time_ms,
        records_of.max_time_ms,
        bool(records_of.sealed),
    )


def shape_of(columns: Any) -> Any:
    """Buffer columns as plain values with types, to be compared with `==`."""
    if columns is None or isinstance(columns, int):
        return columns
    if isinstance(columns, np.ndarray):
        return columns.dtype.str, columns.shape, columns.tobytes()
    parts: Iterable[Any] = columns
    if isinstance(columns, BufferColumns):
        parts = (getattr(columns, field.name) for field in fields(columns))
    return tuple(shape_of(part) for part in parts)
