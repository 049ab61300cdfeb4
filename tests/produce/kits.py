"""The producer's core on either of the kernel's twins: the same files, loaded once for each."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

import pytest

import penstock
from penstock.produce import kernel
from penstock.produce.accumulator import Accumulator
from penstock.produce.batch import Batch, SealReason, State
from penstock.produce.entrance import Entrance
from penstock.produce.lane import Intake, Lane, Parcel, Receipt
from penstock.produce.lanes import Lanes, Parts
from penstock.produce.outlet import Outlet
from penstock.produce.receipts import Moved
from penstock.produce.sender import Sender

PACKAGE = "penstock.produce"
PLAIN, COMPILED = "lane", "_lane"
TWINS = (PLAIN, COMPILED)
OWN = kernel.Intake.__module__.rpartition(".")[2]
"""The twin that this process runs on."""


@dataclass(frozen=True)
class Kit:
    """What stands on a kernel, standing on a certain one."""

    name: str
    modules: dict[str, ModuleType]
    Intake: type[Intake]
    Lane: type[Lane]
    Parcel: type[Parcel]
    Receipt: type[Receipt]
    Accumulator: type[Accumulator]
    Batch: type[Batch]
    Entrance: type[Entrance]
    Lanes: type[Lanes]
    Moved: type[Moved]
    Outlet: type[Outlet]
    Parts: type[Parts]
    SealReason: type[SealReason]
    Sender: type[Sender]
    State: type[State]

    def __repr__(self) -> str:
        return f"Kit({self.name})"

    def part(self, module: str, name: str) -> Any:
        """Something of one of the core's files."""
        return getattr(self.modules[module], name)


_MODULES = ("kernel", "accumulator", "batch", "bulk", "entrance", "hand_made", "lanes", "outlet", "receipts", "sender")
_kits: dict[str, Kit] = {}


def load_kit(twin: str) -> Kit:
    """The core on this twin; where that cannot be had the test is skipped, unless everything is required."""
    if twin not in _kits:
        _kits[twin] = _gather(twin) if twin == OWN else _load(twin)
    return _kits[twin]


def _load(twin: str) -> Kit:
    if twin == COMPILED:
        if os.environ.get("PENSTOCK_REQUIRE_ALL") and shutil.which(os.environ.get("CC", "cc").split()[0]):
            pytest.fail("the compiled kernel is not in use although there is a C compiler", pytrace=False)
        pytest.skip("the compiled kernel was not built, or is not wanted")
    own = _forget()
    package = penstock.produce
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_KERNEL", "plain")
        try:
            return _gather(twin)
        finally:
            _forget()
            sys.modules.update(own)
            penstock.produce = package


def _forget() -> dict[str, ModuleType]:
    """Take the package out of what is loaded."""
    names = [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]
    return {name: sys.modules.pop(name) for name in names}


def _gather(twin: str) -> Kit:
    modules = {name: importlib.import_module(f"{PACKAGE}.{name}") for name in _MODULES}
    named: dict[str, Any] = {"name": twin, "modules": modules}
    for field in fields(Kit):
        for module in modules.values():
            if field.name not in named and hasattr(module, field.name):
                named[field.name] = getattr(module, field.name)
    assert named["Intake"].__module__ == f"{PACKAGE}.{twin}"
    return Kit(**named)
