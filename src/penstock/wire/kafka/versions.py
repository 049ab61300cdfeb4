"""Which versions of which requests are spoken here, and the choice of one that the broker speaks too.

A request's highest common version is taken, with one exception. Since transaction.version 2 (KIP-890) the broker
enlists partitions and groups by itself and ends each transaction with a new epoch, and it tells from the version of a
request whether the client counts on that. So within a transaction the versions that say so are used only where the
cluster has finalized it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import RefusedError
from penstock.wire.kafka.codes import ROWS, UNSUPPORTED_VERSION

TRANSACTION_VERSION = "transaction.version"
SELF_ENLISTING = 2


@dataclass(frozen=True, slots=True, eq=False)
class Api:
    """A kind of request: the versions spoken here, and the first that has compact fields and tags."""

    name: str
    key: int
    oldest: int
    newest: int
    flexible_from: int
    newest_enlisted: int | None = None
    """The newest version in a transaction whose partitions and groups are enlisted by the client."""

    def __str__(self) -> str:
        return self.name

    def is_flexible(self, version: int) -> bool:
        """Whether this version has compact fields and tags."""
        return version >= self.flexible_from


# Not spoken: Produce 13, OffsetCommit 10 and OffsetFetch 10, which name topics by their ids; Fetch 18, whose news are
# for followers; ListOffsets 11, for a spot that nobody asks for; AddPartitionsToTxn 4 and 5, which brokers use among
# themselves; ApiVersions 4, whose news are of no use here and which would cost brokers before it a second greeting.
PRODUCE = Api("Produce", 0, 3, 12, 9, newest_enlisted=11)
FETCH = Api("Fetch", 1, 4, 17, 12)
LIST_OFFSETS = Api("ListOffsets", 2, 2, 10, 6)
METADATA = Api("Metadata", 3, 1, 13, 9)
OFFSET_COMMIT = Api("OffsetCommit", 8, 2, 9, 8)
OFFSET_FETCH = Api("OffsetFetch", 9, 1, 9, 6)
FIND_COORDINATOR = Api("FindCoordinator", 10, 0, 6, 3)
LIST_GROUPS = Api("ListGroups", 16, 0, 5, 3)
API_VERSIONS = Api("ApiVersions", 18, 0, 3, 3)
CREATE_TOPICS = Api("CreateTopics", 19, 2, 7, 5)
DELETE_TOPICS = Api("DeleteTopics", 20, 1, 6, 4)
INIT_PRODUCER_ID = Api("InitProducerId", 22, 0, 5, 2, newest_enlisted=4)
OFFSET_FOR_LEADER_EPOCH = Api("OffsetForLeaderEpoch", 23, 2, 4, 4)
ADD_PARTITIONS_TO_TXN = Api("AddPartitionsToTxn", 24, 0, 3, 3)
ADD_OFFSETS_TO_TXN = Api("AddOffsetsToTxn", 25, 0, 4, 3)
END_TXN = Api("EndTxn", 26, 0, 5, 3, newest_enlisted=4)
TXN_OFFSET_COMMIT = Api("TxnOffsetCommit", 28, 0, 5, 3, newest_enlisted=4)
DESCRIBE_CONFIGS = Api("DescribeConfigs", 32, 1, 4, 4)
CREATE_PARTITIONS = Api("CreatePartitions", 37, 0, 3, 2)
INCREMENTAL_ALTER_CONFIGS = Api("IncrementalAlterConfigs", 44, 0, 1, 1)

APIS = (
    PRODUCE,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    FIND_COORDINATOR,
    LIST_GROUPS,
    API_VERSIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    INIT_PRODUCER_ID,
    OFFSET_FOR_LEADER_EPOCH,
    ADD_PARTITIONS_TO_TXN,
    ADD_OFFSETS_TO_TXN,
    END_TXN,
    TXN_OFFSET_COMMIT,
    DESCRIBE_CONFIGS,
    CREATE_PARTITIONS,
    INCREMENTAL_ALTER_CONFIGS,
)


class Versions:
    """What a broker told in its greeting, and what is chosen from it."""

    __slots__ = ("_chosen", "_enlisted", "_ranges", "enlists", "features")

    def __init__(self, ranges: Mapping[int, tuple[int, int]], features: Mapping[str, int]) -> None:
        """`ranges`: oldest and newest version of each request by its key; `features`: what the cluster finalized."""
        self._ranges = dict(ranges)
        self.features = dict(features)
        self.enlists = self._enlists()
        """Whether partitions and groups are enlisted in a transaction by the broker."""
        self._chosen = {api: newest for api in APIS if (newest := self._common(api, api.newest)) is not None}
        self._enlisted = {
            api: newest
            for api in APIS
            if (newest := self._common(api, api.newest if self.enlists else newest_enlisted(api))) is not None
        }

    def __repr__(self) -> str:
        return f"<Versions of {len(self._ranges)} requests, features {self.features}>"

    def choose(self, api: Api, *, in_transaction: bool = False) -> int:
        """The highest version that both sides speak; RefusedError where there is none."""
        version = (self._enlisted if in_transaction else self._chosen).get(api)
        if version is None:
            raise self._nothing_common(api)
        return version

    def _common(self, api: Api, newest: int) -> int | None:
        oldest_there, newest_there = self._ranges.get(api.key, (0, -1))
        version = min(newest, newest_there)
        return version if version >= max(api.oldest, oldest_there) else None

    def _enlists(self) -> bool:
        """A cluster that has finalized it serves the versions that use it; one that does not is not believed."""
        if self.features.get(TRANSACTION_VERSION, 0) < SELF_ENLISTING:
            return False
        needed = [api for api in APIS if api.newest_enlisted is not None]
        return all((self._common(api, api.newest) or 0) > newest_enlisted(api) for api in needed)

    def _nothing_common(self, api: Api) -> RefusedError:
        ours = f"versions {api.oldest} to {api.newest} are spoken here"
        there = self._ranges.get(api.key)
        theirs = f"{there[0]} to {there[1]} by the broker" if there else "the broker does not serve it at all"
        return RefusedError(f"{api}: {ours}, {theirs}", ROWS[UNSUPPORTED_VERSION].name)


def newest_enlisted(api: Api) -> int:
    """The newest version in a transaction whose partitions and groups are enlisted by the client."""
    return api.newest if api.newest_enlisted is None else api.newest_enlisted
