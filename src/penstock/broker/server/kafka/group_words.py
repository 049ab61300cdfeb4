"""Groups in Kafka's words: names of states, codes, who a client is."""

from __future__ import annotations

from typing import Final

from penstock.broker.groups import classic, consumer
from penstock.broker.groups.questions import Client
from penstock.broker.refusals import Refusal
from penstock.broker.server.kafka.codes import CODES, NONE, NUMBERS
from penstock.broker.server.kafka.dispatch import Context

STATES: Final[dict[classic.State | consumer.State, str]] = {
    classic.State.EMPTY: "Empty",
    classic.State.PREPARING: "PreparingRebalance",
    classic.State.COMPLETING: "CompletingRebalance",
    classic.State.STABLE: "Stable",
    classic.State.DEAD: "Dead",
    consumer.State.EMPTY: "Empty",
    consumer.State.ASSIGNING: "Assigning",
    consumer.State.RECONCILING: "Reconciling",
    consumer.State.STABLE: "Stable",
}

NO_OPERATIONS: Final = -(1 << 31)
"""The client did not ask what it may do."""
OPERATIONS: Final = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""Read, delete, describe, describe and alter settings: all that can be done with a group, and everybody may."""

_TRY_AGAIN: Final = frozenset({Refusal.STORAGE_FULL, Refusal.STORAGE_FAILED})


def group_code(refusal: Refusal | None) -> int:
    """The code of a refusal; a disk that is full is told as a coordinator that clients try again later."""
    if refusal is None:
        return NONE
    return NUMBERS["COORDINATOR_NOT_AVAILABLE"] if refusal in _TRY_AGAIN else CODES[refusal]


def client_of(context: Context) -> Client:
    """Who asks."""
    return Client(context.client_id or "", context.host)


def shown_host(client: Client) -> str:
    """A client's address as Kafka shows it."""
    return f"/{client.host}"
