"""What counts as durable among an object's members (PROTOCOLS section 7, "Members"). Pure.

A member is a copy id. **An ack counts only while the durable manifest (or `birth`, while there is none) names that
member and it holds the owner's generation.** While a change of members is under way an answer needs the quorum among
the members of both sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NOTHING = -1


@dataclass(frozen=True, slots=True)
class Members:
    """A set of copy ids and the quorum Q among them, as the manifest records them. The home's own copy never counts."""

    copies: tuple[str, ...] = ()
    quorum: int = 0

    @property
    def counts(self) -> bool:
        """Whether a quorum of these members can answer a call at all. With Q = 0 the fan-out runs in shadow."""
        return 0 < self.quorum <= len(self.copies)


def landed(acks: Mapping[str, int], members: Members) -> int:
    """The mark that Q of the members hold; NOTHING for none. `acks` are marks in the owner's own generations."""
    if not members.counts:
        return NOTHING
    held = sorted([acks.get(copy, NOTHING) for copy in members.copies])
    return held[-members.quorum]


def landed_in_all(acks: Mapping[str, int], sets: Sequence[Members]) -> int:
    """The mark that a quorum holds in every one of the sets."""
    if len(sets) == 1:  # as ever but while members change
        return landed(acks, sets[0])
    return min((landed(acks, members) for members in sets), default=NOTHING)


def read_quorum(members: Members) -> int:
    """R: how many of K members must answer a takeover so that every answered write is among the answers (section 5)."""
    return len(members.copies) - members.quorum + 1 if members.counts else 0
