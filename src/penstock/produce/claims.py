"""What the messages of a batch share: the properties that keep a batch together, and those that are listed for it.

A restricted property has a list of values that count. Messages go into one batch only if they agree on all restricted
properties; a value that is not listed counts as absent. A listed property does not part messages: the batch remembers
which values occurred, until there are too many to be of use to a filter.

Pure. Runs on: the thread that appends, under whatever keeps two of them apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from penstock.errors import MessageError
from penstock.message import Properties, PropertyValue
from penstock.wire.entry import PropertyClaim

Shared = tuple[str | None, ...]
"""The value of each restricted property, in the policy's order; None: absent, or not listed."""


class Restriction:
    """Which properties keep a batch together, and the values that count."""

    def __init__(self, same_properties: Mapping[str, Collection[str]]) -> None:
        self.names = tuple(same_properties)
        self.allowed = tuple(_spellings(same_properties[name]) for name in self.names)
        """Of each of them, what a value counts as; the same object for the same value."""
        self._nothing: Shared = (None,) * len(self.names)

    def shared(self, properties: Properties | None) -> Shared:
        """What a message brings of the restricted properties."""
        if not properties:
            return self._nothing
        return tuple(
            [allowed.get(properties.get(name)) for name, allowed in zip(self.names, self.allowed, strict=True)]
        )

    def shared_by_all(self, messages: Iterable[Properties | None]) -> Shared:
        """What each of these messages, of one batch, brings of them; raises where they differ."""
        first, *others = dict.fromkeys(map(self.shared, messages))
        if others:
            name = self.differing(first, others[0])[0]
            raise MessageError(
                f"batch: its messages differ in the property {name!r}, which same_properties keeps the same within a "
                "batch: make a batch for each value, or use send_many"
            )
        return first

    def differing(self, one: Shared, other: Shared) -> list[str]:
        """The names of the properties in which two messages differ."""
        return [name for name, a, b in zip(self.names, one, other, strict=True) if a != b]

    def claim(self, shared: Shared) -> dict[str, str | None]:
        """The shared values by name."""
        return dict(zip(self.names, shared, strict=True))


class Listing:
    """The values of the listed properties that occurred in one batch."""

    __slots__ = ("_most", "_values")

    def __init__(self, names: Collection[str], most: int) -> None:
        self._most = most
        self._values: dict[str, set[str | None] | None] = {name: set() for name in names}

    def add(self, properties: Properties | None) -> None:
        """One more message."""
        for name, values in self._values.items():
            if values is None:
                continue
            value = properties.get(name) if properties else None
            if value not in values:
                self._values[name] = _with(values, value, self._most)

    def claim(self) -> dict[str, frozenset[str | None]]:
        """The values by name, without the properties that had too many or unreadable ones."""
        return {name: frozenset(values) for name, values in self._values.items() if values is not None}


def claim_of(restriction: Restriction | None, shared: Shared, listing: Listing | None) -> PropertyClaim:
    """What the header of the batch will say."""
    same = restriction.claim(shared) if restriction else {}
    return PropertyClaim(same, listing.claim() if listing else {})


def _spellings(values: Collection[str]) -> dict[PropertyValue, str]:
    """A property's value may come as text or as its bytes: both count as the same."""
    return {spelling: value for value in values for spelling in (value, value.encode())}


def _with(values: set[str | None], value: PropertyValue, most: int) -> set[str | None] | None:
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return None
    values.add(value)
    return values if len(values) <= most else None
