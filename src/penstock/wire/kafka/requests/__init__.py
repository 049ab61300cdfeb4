"""Kafka's side of each neutral request: which of its requests stands for it, and how both ways are said."""

from __future__ import annotations

from typing import Any

from penstock.errors import RefusedError
from penstock.wire.kafka.requests import produce, topics, transactions
from penstock.wire.kafka.requests.exchange import Exchange
from penstock.wire.protocol import (
    CommitMarks,
    CreateTopic,
    DeleteTopic,
    EndTransaction,
    Enlist,
    EnlistGroup,
    FindHome,
    GrowTopic,
    Identify,
    LookUp,
    Publish,
    Request,
)

EXCHANGES: dict[type[Request[Any]], Exchange] = {
    Publish: produce.EXCHANGE,
    LookUp: topics.LOOK_UP,
    CreateTopic: topics.CREATE,
    DeleteTopic: topics.DELETE,
    GrowTopic: topics.GROW,
    Identify: transactions.IDENTIFY,
    FindHome: transactions.FIND,
    Enlist: transactions.ENLIST,
    EnlistGroup: transactions.ENLIST_GROUP,
    CommitMarks: transactions.COMMIT_MARKS,
    EndTransaction: transactions.END,
}


def exchange_of(request: Request[Any]) -> Exchange:
    """How this request is said to Kafka; RefusedError for one that Kafka has no answer to."""
    try:
        return EXCHANGES[type(request)]
    except KeyError:
        raise RefusedError(f"Kafka has no answer to {type(request).__name__}") from None
