"""What there is in a world of positions: owners, replicas, the manifest, the lease row, releases on their way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from domicile.placement.records import Generation
from smallworlds.copies import BIRTH, Copy, Flags, Register, Write
from smallworlds.replicas import FRESH


@dataclass(frozen=True, slots=True)
class World:
    """How much may happen. One entry an owner: its writes, its rotations, whether it may release clean.

    `members`: K, the first of the `replicas`. `forgets`: how often a replica gives up a copy. `change`: owners that may
    replace a member. `late`: a takeover puts its manifest after laying, as the product does, not before asking. `own`:
    a claimant may be on an earlier owner's node and lay its file. `wide`: searched only when asked for.
    """

    writes: tuple[int, ...]
    rotations: tuple[int, ...] = (0, 0, 0, 0)
    releases: tuple[bool, ...] = (False, False, False, False)
    forgets: int = 0
    members: int = 3
    replicas: int = 3
    change: tuple[int, ...] = ()
    late: bool = False
    own: bool = False
    wide: bool = False


class Claimant(NamedTuple):
    """Asking. `current`: the manifest still has the tag it read. `asked` are the members of that manifest.

    `whole`: the manifest it read is the one a clean release left.
    """

    file: Copy
    best: Copy
    current: bool
    asked: Flags
    answered: Flags
    whole: bool = False


class Serving(NamedTuple):
    """Laid. `source` is the generation it laid, `safe` the length it knows to be in the manifest, or laid clean.

    `acks`: for each replica the length it acked in this generation. `pending`: members that a put under way may make
    the durable ones.
    """

    copy: Copy
    source: Generation
    safe: int
    acks: tuple[int, ...]
    current: bool
    members: Flags
    pending: Flags | None = None


class Over(NamedTuple):
    """It does nothing any more. `file` is what it left on its node, where that matters."""

    file: Copy | None


Owner = Claimant | Serving | Over | None
"""None: has not claimed yet."""


class Replica(NamedTuple):
    """The fence it keeps and its copy; None after it forgot."""

    fence: int
    copy: Copy | None


class Release(NamedTuple):
    """What a residency writes into the row. `current`: the manifest still has the tag that it names."""

    copy: Copy
    current: bool
    members: Flags


class Row(NamedTuple):
    """The lease row: the last owner that claimed, and its release once that has landed."""

    owner: int
    release: Release | None


class State(NamedTuple):
    """`flying`: releases sent, not landed, with their owners. `told`: every write somebody learned to be there."""

    owners: tuple[Owner, ...]
    replicas: tuple[Replica, ...]
    register: Register
    row: Row
    flying: frozenset[tuple[int, Release]]
    told: frozenset[Write]
    forgets: int


def start(world: World) -> State:
    """Owner 0 serves an object just born on the first replicas."""
    k, spare = world.members, world.replicas - world.members
    members = (True,) * k + (False,) * spare
    born = Serving(BIRTH, BIRTH.generation, 0, (0,) * k + (-1,) * spare, True, members)
    replicas = (Replica(0, BIRTH),) * k + (Replica(FRESH, None),) * spare
    owners = (born, *(None,) * (len(world.writes) - 1))
    return State(owners, replicas, Register(0, BIRTH, members), Row(0, None), frozenset(), frozenset(), 0)


def superseded(state: State) -> State:
    """All that is conditioned on the manifest's tag, once another has landed."""
    owners = tuple(
        owner._replace(current=False) if isinstance(owner, Claimant | Serving) and owner.current else owner
        for owner in state.owners
    )
    owner, release = state.row
    if release is not None and release.current:
        release = release._replace(current=False)
    flying = frozenset((sender, sent._replace(current=False)) for sender, sent in state.flying)
    return state._replace(owners=owners, row=Row(owner, release), flying=flying)


def in_order(state: State) -> State:
    """The same state with the replicas, which are alike, in one fixed order."""
    count = range(len(state.replicas))
    keys = [_column(state, r) for r in count]
    order = sorted(count, key=keys.__getitem__)
    if order == list(count):
        return state

    def turned(row: tuple) -> tuple:  # type: ignore[type-arg]
        return tuple([row[r] for r in order])

    def turned_owner(owner: Owner) -> Owner:
        if isinstance(owner, Claimant):
            return owner._replace(asked=turned(owner.asked), answered=turned(owner.answered))
        if isinstance(owner, Serving):
            pending = owner.pending and turned(owner.pending)
            return owner._replace(acks=turned(owner.acks), members=turned(owner.members), pending=pending)
        return owner

    def turned_release(release: Release) -> Release:
        return release._replace(members=turned(release.members))

    owner, release = state.row
    return State(
        tuple([turned_owner(each) for each in state.owners]),
        turned(state.replicas),
        state.register._replace(members=turned(state.register.members)),
        Row(owner, release and turned_release(release)),
        frozenset((sender, turned_release(sent)) for sender, sent in state.flying),
        state.told,
        state.forgets,
    )


def _column(state: State, r: int) -> tuple[int, ...]:
    """All that is said of one replica, as something that can be sorted."""
    fence, copy = state.replicas[r]
    column = [fence, copy.serial if copy else -1, state.register.members[r]]
    if state.row.release is not None:
        column.append(state.row.release.members[r])
    column += [release.members[r] for _, release in sorted(state.flying, key=lambda sent: sent[0])]
    for owner in state.owners:
        if isinstance(owner, Serving):
            column += [owner.acks[r], owner.members[r], owner.pending is not None and owner.pending[r]]
        elif isinstance(owner, Claimant):
            column += [owner.asked[r], owner.answered[r]]
    return tuple(column)
