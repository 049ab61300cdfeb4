"""Which offsets have had their time.

| the group                             | an offset's time is over                                                     |
|---------------------------------------|------------------------------------------------------------------------------|
| is empty                              | so long after it was committed, or the group became empty if that was later  |
| has members whose topics are known    | so long after it was committed, if nobody in it reads the topic              |
| is being rebalanced, or does not tell | never                                                                        |

A member may have said when it ends, which then counts. None ends while a transaction may still change it. Pure.
"""

from __future__ import annotations

from penstock.broker.groups.classic import ClassicGroup, State
from penstock.broker.groups.consumer import ConsumerGroup
from penstock.broker.groups.offsets import Offsets
from penstock.wire.protocol import Partition


def overdue(group: ClassicGroup | ConsumerGroup, offsets: Offsets, retention_ms: int, now_ms: int) -> list[Partition]:
    """The partitions whose offsets can be dropped."""
    if (
        isinstance(group, ClassicGroup)
        and not group.is_empty
        and (group.topics is None or group.state is not State.STABLE)
    ):
        return []
    emptied_ms = group.emptied_ms or 0
    pending = offsets.pending_of(group.name)
    found = []
    for partition, offset in offsets.of(group.name).items():
        ends_ms = offset.expires_ms
        if ends_ms is None:
            ends_ms = max(offset.committed_ms, emptied_ms) + retention_ms
        if now_ms >= ends_ms and partition not in pending and not group.wants(partition.topic):
            found.append(partition)
    return found
