"""Kafka's side of each neutral request: which of its requests stands for it, and how both ways are said."""

from __future__ import annotations

from typing import Any

from penstock.errors import RefusedError
from penstock.wire.kafka.requests import fetch, filters, groups, positions, produce, topics, transactions
from penstock.wire.kafka.requests.exchange import Exchange
from penstock.wire.protocol import (
    CommitMarks,
    CreateTopic,
    DeleteTopic,
    EndTransaction,
    Enlist,
    EnlistGroup,
    Fetch,
    FindEpochEnds,
    FindHome,
    FindPositions,
    GrowTopic,
    Identify,
    ListGroups,
    LookUp,
    Publish,
    ReadFilter,
    ReadMarks,
    ReadSettings,
    Request,
    SetFilter,
    StoreMarks,
)

EXCHANGES: dict[type[Request[Any]], Exchange] = {
    Publish: produce.EXCHANGE,
    Fetch: fetch.EXCHANGE,
    LookUp: topics.LOOK_UP,
    CreateTopic: topics.CREATE,
    DeleteTopic: topics.DELETE,
    GrowTopic: topics.GROW,
    ReadSettings: topics.READ_SETTINGS,
    Identify: transactions.IDENTIFY,
    FindHome: transactions.FIND,
    Enlist: transactions.ENLIST,
    EnlistGroup: transactions.ENLIST_GROUP,
    CommitMarks: transactions.COMMIT_MARKS,
    EndTransaction: transactions.END,
    FindPositions: positions.FIND,
    FindEpochEnds: positions.FIND_ENDS,
    ReadMarks: positions.READ_MARKS,
    ListGroups: groups.LIST,
    StoreMarks: positions.STORE_MARKS,
    SetFilter: filters.SET_FILTER,
    ReadFilter: filters.READ_FILTER,
}


def exchange_of(request: Request[Any]) -> Exchange:
    """How this request is said to Kafka; RefusedError for one that Kafka has no answer to."""
    try:
        return EXCHANGES[type(request)]
    except KeyError:
        raise RefusedError(f"Kafka has no answer to {type(request).__name__}") from None
