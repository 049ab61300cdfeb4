"""The roll of a group whose members agree among themselves: who is on it, who leads, who waits for an answer.

It keeps counts beside the members so that nothing is counted anew for each request: how many wait for the next
generation, and how many take part in each protocol. A protocol can be chosen only when all members take part in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.broker.groups.questions import NO_SHARE, Client, Joined, Offer, Replies, Reply, Share, Synced
from penstock.broker.refusals import Refusal


@dataclass(slots=True, eq=False)
class Member:
    """A member of a group; `joining` and `syncing` are whom to answer, while it waits."""

    id: str
    instance: str | None
    client: Client
    offers: tuple[Offer, ...]
    session_ms: int
    rebalance_ms: int
    is_new: bool = True
    share: Share = NO_SHARE
    joining: Reply | None = None
    syncing: Reply | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for the others, which is as good as a heartbeat once it knows its id."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    def offer(self, protocol: str | None) -> Offer:
        """What it says about itself in that protocol."""
        return next((offer for offer in self.offers if offer.name == protocol), Offer("", b""))


class Roll:
    """The members of a group, in the order in which they came."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.statics: dict[str, str] = {}
        """The member of each instance."""
        self.leader: str | None = None
        self.changes = 0
        """How often somebody came or went."""
        self.joining = 0
        """How many wait for the next generation."""
        self.replies: Replies = []
        """What was answered, for whoever hands it out."""
        self._support: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Roll of {len(self.members)}, {self.joining} joining, led by {self.leader}>"

    # Who is on it

    def add(self, member: Member) -> None:
        """Put a member on it; the first one leads."""
        self.members[member.id] = member
        self.changes += 1
        self._support.update(_names(member.offers))
        if member.instance is not None:
            self.statics[member.instance] = member.id
        if self.leader is None:
            self.leader = member.id

    def remove(self, member_id: str) -> bool:
        """Strike a member out, if it is there; whoever waits in its name is told to begin anew."""
        member = self.members.pop(member_id, None)
        if member is None:
            return False
        self.changes += 1
        self.answer_join(member, Joined("", refusal=Refusal.UNKNOWN_MEMBER))
        self.answer_sync(member, Synced(refusal=Refusal.UNKNOWN_MEMBER))
        self._support.subtract(_names(member.offers))
        if member.instance is not None:
            del self.statics[member.instance]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return True

    def replace(self, before: str, after: str, client: Client) -> Member:
        """Put somebody else into a static member's place; whoever waits under the old id is fenced."""
        member = self.members.pop(before)
        self.changes += 1
        self.answer_join(member, Joined(before, refusal=Refusal.FENCED_INSTANCE))
        self.answer_sync(member, Synced(refusal=Refusal.FENCED_INSTANCE))
        member.id, member.client = after, client
        self.members[after] = member
        self.statics[member.instance or ""] = after
        if self.leader == before:
            self.leader = after
        return member

    def set_offers(self, member: Member, offers: tuple[Offer, ...]) -> None:
        """A member takes part in other protocols, or says something else about itself."""
        self._support.subtract(_names(member.offers))
        self._support.update(_names(offers))
        member.offers = offers

    def why_not(self, member_id: str, instance: str | None) -> Refusal | None:
        """What one is answered who is not this member."""
        if instance is not None:
            known = self.statics.get(instance)
            if known is None:
                return Refusal.UNKNOWN_MEMBER
            if known != member_id:
                return Refusal.FENCED_INSTANCE
        return None if member_id in self.members else Refusal.UNKNOWN_MEMBER

    # What they have in common

    def supports(self, protocols: Iterable[str]) -> bool:
        """Whether all members take part in one of these."""
        return any(self._support[name] == len(self.members) for name in protocols)

    def choose(self) -> str:
        """Of the protocols that all members take part in, the one that most of them like best."""
        everybody = len(self.members)
        votes = Counter(
            next(offer.name for offer in member.offers if self._support[offer.name] == everybody)
            for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def topics(self, protocol: str | None) -> frozenset[str] | None:
        """The topics that they want; None when one of them does not say."""
        wanted: set[str] = set()
        for member in self.members.values():
            topics = member.offer(protocol).topics
            if topics is None:
                return None
            wanted |= topics
        return frozenset(wanted)

    @property
    def rebalance_ms(self) -> int:
        """How long the slowest of them wants to be waited for."""
        return max((member.rebalance_ms for member in self.members.values()), default=0)

    # Who waits

    def elect(self) -> bool:
        """See to it that the leader is somebody who has joined; whether anybody has."""
        if self.leader is not None and self.members[self.leader].joining is not None:
            return True
        joined = next((member.id for member in self.members.values() if member.joining is not None), None)
        if joined is not None:
            self.leader = joined
        return joined is not None

    def wait_to_join(self, member: Member, reply: Reply) -> None:
        """Note whom to answer; who asked before for the same member is told to ask again, and mostly has gone."""
        if member.joining is None:
            self.joining += 1
        else:
            self.replies.append((member.joining, Joined(member.id, refusal=Refusal.REBALANCING)))
        member.joining = reply

    def wait_to_sync(self, member: Member, reply: Reply) -> None:
        """The same for its share."""
        self.answer_sync(member, Synced(refusal=Refusal.REBALANCING))
        member.syncing = reply

    def answer_join(self, member: Member, answer: Joined) -> None:
        """Answer a member that waits for the next generation; nothing if it does not."""
        if member.joining is not None:
            self.replies.append((member.joining, answer))
            member.joining = None
            self.joining -= 1

    def answer_sync(self, member: Member, answer: Synced) -> bool:
        """Answer a member that waits for its share; whether it did."""
        if member.syncing is None:
            return False
        self.replies.append((member.syncing, answer))
        member.syncing = None
        return True


def _names(offers: tuple[Offer, ...]) -> set[str]:
    """The protocols offered; one that is offered twice counts once."""
    return {offer.name for offer in offers}
