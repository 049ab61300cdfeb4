"""Which groups a client belongs to, by the client: for whoever sees a client read and must know for which group.

Runs on: the loop thread.
"""

from __future__ import annotations

from penstock.broker.groups.classic import ClassicGroup
from penstock.broker.groups.consumer import ConsumerGroup
from penstock.broker.groups.questions import Client
from penstock.wire.protocol import Partition


class Readers:
    """An index from clients to the groups that they have members in."""

    def __init__(self) -> None:
        self._groups: dict[Client, dict[str, ClassicGroup | ConsumerGroup]] = {}
        self._clients: dict[str, tuple[int, set[Client]]] = {}

    def __repr__(self) -> str:
        return f"<Readers {len(self._groups)} clients in {len(self._clients)} groups>"

    def note(self, group: ClassicGroup | ConsumerGroup) -> None:
        """See who has come or gone."""
        changes, before = self._clients.get(group.name, (-1, set()))
        if changes != group.changes:
            self._set(group, before, {member.client for member in group.members.values()})

    def reading(self, client: Client, partition: Partition) -> set[str]:
        """The groups in which this client reads the partition."""
        found = set()
        for name, group in self._groups.get(client, {}).items():
            reader = group.reader(partition)
            if reader is not None and reader.client == client:
                found.add(name)
        return found

    def _set(self, group: ClassicGroup | ConsumerGroup, before: set[Client], after: set[Client]) -> None:
        for client in before:
            del self._groups[client][group.name]
            if not self._groups[client]:
                del self._groups[client]
        for client in after:
            self._groups.setdefault(client, {})[group.name] = group
        if after:
            self._clients[group.name] = group.changes, after
        else:
            self._clients.pop(group.name, None)
