"""You handle messages one at a time; Penstock moves them in batches, all the way."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

__version__ = version("penstock")

# Loaded when first asked for: who only judges a batch by its header, as filters do, needs no client.
_PLACES = {
    "BatchIo": "penstock.config",
    "BatchPolicy": "penstock.config",
    "BulkReceipt": "penstock.produce.bulk_receipt",
    "Client": "penstock.client",
    "Copying": "penstock.replicate.copying",
    "Cursor": "penstock.consume.cursor",
    "Entry": "penstock.consume.opening",
    "GroupMember": "penstock.wire.protocol",
    "Mark": "penstock.wire.protocol",
    "MessageId": "penstock.message",
    "PartialRoundRobin": "penstock.produce.router",
    "PenstockError": "penstock.errors",
    "Producer": "penstock.produce.producer",
    "Reader": "penstock.consume.reader",
    "Receipt": "penstock.produce.kernel",
    "RoundRobin": "penstock.produce.router",
    "Single": "penstock.produce.router",
    "Sticky": "penstock.produce.router",
    "aio": "penstock.aio",
    "connect": "penstock.client",
    "copy": "penstock.replicate.copying",
    "embedded": "penstock.broker.embedded",
    "verify": "penstock.replicate.verify",
}
__all__ = ["__version__", *_PLACES]

if TYPE_CHECKING:
    from penstock import aio as aio
    from penstock.broker.embedded import embedded as embedded
    from penstock.client import Client as Client
    from penstock.client import connect as connect
    from penstock.config import BatchIo as BatchIo
    from penstock.config import BatchPolicy as BatchPolicy
    from penstock.consume.cursor import Cursor as Cursor
    from penstock.consume.opening import Entry as Entry
    from penstock.consume.reader import Reader as Reader
    from penstock.errors import PenstockError as PenstockError
    from penstock.message import MessageId as MessageId
    from penstock.produce.bulk_receipt import BulkReceipt as BulkReceipt
    from penstock.produce.kernel import Receipt as Receipt
    from penstock.produce.producer import Producer as Producer
    from penstock.produce.router import PartialRoundRobin as PartialRoundRobin
    from penstock.produce.router import RoundRobin as RoundRobin
    from penstock.produce.router import Single as Single
    from penstock.produce.router import Sticky as Sticky
    from penstock.replicate.copying import Copying as Copying
    from penstock.replicate.copying import copy as copy
    from penstock.replicate.verify import verify as verify
    from penstock.wire.protocol import GroupMember as GroupMember
    from penstock.wire.protocol import Mark as Mark


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    module = importlib.import_module(_PLACES[name])
    found = module if name == "aio" else getattr(module, name)
    globals()[name] = found
    return found
