"""What can be set for groups: the table, and the values that hold."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from penstock.broker.settings import Setting
from penstock.config.kinds import INT32_MAX, KIB, MIB, count, size
from penstock.errors import ConfigError

_SECOND_MS = 1000
_MINUTE_MS = 60 * _SECOND_MS
_DAY_MS = 24 * 60 * _MINUTE_MS

GROUP_TABLE: Final[tuple[Setting, ...]] = (
    Setting("session_min_ms", count(1, INT32_MAX), 6 * _SECOND_MS, "The shortest session that a member may ask for."),
    Setting("session_max_ms", count(1, INT32_MAX), 30 * _MINUTE_MS, "The longest session that a member may ask for."),
    Setting(
        *("first_rebalance_delay_ms", count(0, INT32_MAX), 0),
        "How long an empty group waits for more members before it first shares partitions out.",
    ),
    Setting(
        *("new_member_ms", count(1, INT32_MAX), 5 * _MINUTE_MS),
        "A new member that waits longer than this for the others is sent away, and joins again if it still lives.",
    ),
    Setting("members_max", count(1, 1_000_000), 1_000, "Members of one group."),
    Setting("members_total_max", count(1, 10_000_000), 20_000, "Members of all groups."),
    Setting("member_bytes_max", size(1, INT32_MAX), MIB, "The most that a member may say about itself."),
    Setting("groups_max", count(1, 10_000_000), 50_000, "Groups."),
    Setting(
        *("beat_interval_ms", count(1, INT32_MAX), 5 * _SECOND_MS),
        "How often members whose partitions the broker shares out are told to come by.",
    ),
    Setting("beat_session_ms", count(1, INT32_MAX), 45 * _SECOND_MS, "Such a member is gone after so long without."),
    Setting(
        *("offsets_retention_ms", count(1, (1 << 63) - 1), 7 * _DAY_MS),
        "A group's offsets are dropped so long after it was last used.",
    ),
    Setting(
        *("retention_check_ms", count(1, INT32_MAX), 10 * _MINUTE_MS),
        "How often it is looked whether offsets of a group, or all of it, can be dropped.",
    ),
    Setting("offset_metadata_max", size(0, INT32_MAX), 4 * KIB, "The longest text that may come with an offset."),
)

_DEFAULTS: dict[str, Any] = {row.name: row.default for row in GROUP_TABLE}


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What holds for all groups of a broker. ConfigError when a value is not taken."""

    session_min_ms: int = _DEFAULTS["session_min_ms"]
    session_max_ms: int = _DEFAULTS["session_max_ms"]
    first_rebalance_delay_ms: int = _DEFAULTS["first_rebalance_delay_ms"]
    new_member_ms: int = _DEFAULTS["new_member_ms"]
    members_max: int = _DEFAULTS["members_max"]
    members_total_max: int = _DEFAULTS["members_total_max"]
    member_bytes_max: int = _DEFAULTS["member_bytes_max"]
    groups_max: int = _DEFAULTS["groups_max"]
    beat_interval_ms: int = _DEFAULTS["beat_interval_ms"]
    beat_session_ms: int = _DEFAULTS["beat_session_ms"]
    offsets_retention_ms: int = _DEFAULTS["offsets_retention_ms"]
    retention_check_ms: int = _DEFAULTS["retention_check_ms"]
    offset_metadata_max: int = _DEFAULTS["offset_metadata_max"]

    def __post_init__(self) -> None:
        try:
            for row in GROUP_TABLE:
                object.__setattr__(self, row.name, row.read(getattr(self, row.name)))
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if self.session_min_ms > self.session_max_ms:
            raise ConfigError(f"session_min_ms {self.session_min_ms} is above session_max_ms {self.session_max_ms}")
        if self.beat_interval_ms >= self.beat_session_ms:
            raise ConfigError(
                f"beat_interval_ms {self.beat_interval_ms} is not below beat_session_ms {self.beat_session_ms}"
            )


assert [row.name for row in GROUP_TABLE] == [field.name for field in fields(GroupSettings)]
