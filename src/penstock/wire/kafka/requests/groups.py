"""Which groups there are; each broker tells those whose books it keeps."""

from __future__ import annotations

from typing import Any

from penstock.errors import PenstockError
from penstock.wire.kafka import schema
from penstock.wire.kafka.codes import error_of
from penstock.wire.kafka.requests.exchange import control, elements
from penstock.wire.kafka.versions import LIST_GROUPS
from penstock.wire.protocol import ListGroups


def say_list(request: ListGroups, version: int) -> Any:
    """Groups of every state and type; from versions 4 and 5 on some could be left out."""
    return schema.entity(LIST_GROUPS, version, "ListGroupsRequest")


def hear_list(request: ListGroups, answer: Any) -> frozenset[str] | PenstockError:
    """A broker that has not read all of its books yet says so, and the names that it tells are not all."""
    error = error_of(answer.error_code, "groups")
    return error or frozenset(group.group_id for group in elements(answer.groups, "groups"))


LIST = control(LIST_GROUPS, say_list, hear_list)
