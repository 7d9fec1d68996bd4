"""Positions, takeovers, releases, rotations and members: no answered write may be missing (PROTOCOLS sections 5 and 7).

Owners follow each other, any of them may stop for ever, and one that was superseded goes on as if it were not. A
message may be late, lost or heard in pieces; a release lands at any time after it was sent. Copies of one generation
are prefixes of one log, and a copy changes its generation in one step only, to exactly the new one's start.

A write is a step of its own only together with the first thing that sends it: before that nobody can know of it.

What somebody was told must be in the log of the newest owner that serves, and in what any read quorum of the
manifest's members, with the manifest, would give now.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from domicile.placement.records import Generation
from smallworlds.copies import (
    BIRTH,
    Copy,
    Flags,
    Register,
    answers_needed,
    copy_of,
    epoch,
    fenced,
    greatest,
    is_whole,
    landed,
    lays_clean,
    may_fence,
    reached,
)
from smallworlds.position_state import (
    Claimant,
    Over,
    Owner,
    Release,
    Replica,
    Row,
    Serving,
    State,
    World,
    in_order,
    start,
    superseded,
)
from smallworlds.replicas import FRESH, answers, delivered, says
from smallworlds.searching import Label, put

Steps = Iterator[tuple[Label, State]]

RULES = {
    "same": "a takeover begins a generation of its own",
    "eager": "a copy takes the new generation only when it holds all that was laid",
    "tail": "a relabel cuts what the copy has beyond",
    "extend": "under the old generation a copy is caught up to the laid length and no further",
    "stamp": "the takeover's manifest takes the new name only if its content is what was laid",
    "show": "nothing leaves before Q members or the manifest hold the new generation",
    "count": "only acks in the owner's generation count",
    "patch": "a base is never patched where it lies, except by one exactly at the fold's start",
    "nofence": "a takeover raises the members' fences before they answer",
    "nostore": "a takeover raises the manifest's fence before anything leaves",
    "unfenced": "a stub keeps the fence",
    "serveon": "a residency is over from the moment its release is sent",
    "reread": "a clean claim's first manifest is conditioned on the row's tag, never on one read later",
    "atleast": "a clean claim lays a copy at exactly the released position, no longer one",
    "dirty": "a residency releases only what the manifest reaches",
    "noset": "while the members change an answer needs the quorum in both sets",
    "covers": "a manifest that changes the members covers all that the old ones alone have answered",
    "over": "a takeover asks nobody only where the manifest is the one that a clean release left",
    "silent": "where a birth has not landed, members that hold nothing do not answer for those that are silent",
    "wiped": "a directory that lost its copies is another copy: it does not answer for them",
    "anyone": "a node with neither copy nor stub reads the lease row before it accepts a base",
}

YES, NO = True, False
WORLDS = {
    "left": World(writes=(1, 0), replicas=4, change=(1,), forgets=1),
    "set": World(writes=(1, 1), replicas=4, change=(0, 1)),
    "pair": World(writes=(1, 0, 0), members=2, replicas=3, change=(0, 1)),
    "parting": World(writes=(1, 1, 0), members=2, replicas=3, change=(0,), releases=(YES, NO, NO)),
    "pairs": World(writes=(1, 1, 0), members=2, replicas=3, change=(0, 1), wide=True),
    "lag": World(writes=(2, 0, 0)),
    "late": World(writes=(1, 1, 0), late=True),
    "own": World(writes=(1, 1, 0), own=True),
    "stub": World(writes=(1, 1, 0), releases=(NO, YES, NO), forgets=1),
    "clean": World(writes=(1, 1, 0), releases=(YES, YES, NO), rotations=(0, 1, 0)),
    "turn": World(writes=(1, 1, 0), rotations=(1, 1, 0)),
    "zombie": World(writes=(1, 0, 1, 0), releases=(NO, YES, NO, NO), wide=True),
    "two": World(writes=(2, 1, 0), wide=True),
    "lateturn": World(writes=(1, 0, 0), rotations=(1, 0, 0), late=True, wide=True),
    "all": World(writes=(1, 1, 0), rotations=(0, 1, 0), releases=(YES, YES, NO), forgets=1, late=True, wide=True),
}

WITNESS = {
    **dict.fromkeys(
        ("same", "eager", "tail", "extend", "stamp", "show", "nofence", "nostore", "noset", "covers"), "set"
    ),
    **dict.fromkeys(("unfenced", "serveon", "atleast", "dirty"), "stub"),
    "count": "lag",
    "silent": "lag",
    "patch": "turn",
    "reread": "clean",
    "anyone": "left",
    "wiped": "left",
    "over": "stub",
}
"""The world in which a dropped rule loses a write."""

REPLICA_RULES = {"same", "eager", "tail", "extend", "patch"}
"""What a replica is asked to do that the product's refuses: dropped, the model makes the mistake itself."""

LETS_THE_FENCED_RETURN = {"nofence", "unfenced", "reread", "anyone"}


class Positions:
    """One world, with some rules dropped."""

    def __init__(self, world: World, dropped: frozenset[str] = frozenset()) -> None:
        assert dropped <= RULES.keys(), f"no such rule: {sorted(dropped - RULES.keys())}"
        self._world = world
        self._dropped = dropped
        self._fences_last = not dropped & LETS_THE_FENCED_RETURN

    def start(self) -> State:
        return start(self._world)

    def alike(self, state: State) -> State:
        return in_order(self._without_the_powerless(state) if self._fences_last else state)

    def steps(self, state: State) -> Steps:
        for e, owner in enumerate(state.owners):
            if owner is None:
                if state.row.owner == e - 1:
                    yield from self._claim_clean(state, e)
                    yield from self._claim(state, e)
            elif isinstance(owner, Claimant):
                yield from self._take_over(state, e, owner)
            elif isinstance(owner, Serving):
                yield from self._replicate(state, e, owner)
                yield from self._put(state, e, owner)
                yield from self._turn(state, e, owner)
                yield from self._release(state, e, owner)
        yield from self._land_releases(state)
        yield from self._forget(state)

    # Claims.

    def _claim_clean(self, state: State, e: int) -> Steps:
        """Over a release, on a node whose copy is exactly the released one: nobody is asked."""
        release = state.row.release
        if release is None:
            return
        for copy in dict.fromkeys([release.copy, *(held for _, held in state.replicas if held is not None)]):
            longer = "atleast" in self._dropped and len(copy.log) >= len(release.copy.log)
            if not longer and not lays_clean(copy, release.copy):
                continue
            nobody = (-1,) * len(state.replicas)
            serving = Serving(copy, copy.generation, len(copy.log), nobody, release.current, release.members)
            after = state._replace(row=Row(e, None), told=state.told | copy.held)
            yield (e, "claims clean:", copy), _with(after, e, serving)

    def _claim(self, state: State, e: int) -> Steps:
        """Over anything: its node may hold nothing, or an earlier owner's file."""
        yield (e, "claims"), self._ask(state, e, BIRTH)
        if not self._world.own:
            return
        for p, earlier in enumerate(state.owners[:e]):
            if isinstance(earlier, Serving):
                for file in self._written(p, earlier.copy):
                    yield (e, "claims on", p, "with its file", file), self._ask(_with(state, p, Over(file)), e, file)
            elif isinstance(earlier, Over) and earlier.file is not None:
                yield (e, "claims on", p, "with its file", earlier.file), self._ask(state, e, earlier.file)

    def _ask(self, state: State, e: int, file: Copy) -> State:
        """Claimed: fence the manifest, unless that comes after laying, and go to its members."""
        release = state.row.release
        whole = release is not None and is_whole(state.register, release.copy, current=release.current)
        state = state._replace(row=Row(e, None))
        if not self._world.late and "nostore" not in self._dropped:
            state = _put_manifest(state, fenced(state.register, e, rename=False))
        members = state.register.members
        return _with(
            state, e, Claimant(file, file, True, members, (False,) * len(members), whole or "over" in self._dropped)
        )

    def _take_over(self, state: State, e: int, claimant: Claimant) -> Steps:
        if not claimant.current:
            if may_fence(state.register, e):  # the old holder landed one more: fence first, then ask again
                again = _put_manifest(state, fenced(state.register, e, rename=False))
                members = again.register.members
                asking = Claimant(claimant.file, claimant.file, True, members, (False,) * len(members))
                yield (e, "fences the manifest and asks again"), _with(again, e, asking)
            return
        for r, (fence, copy) in enumerate(state.replicas):
            if not claimant.asked[r] or claimant.answered[r] or fence > e:
                continue
            if not answers(state.register, fence, copy):
                continue
            best = claimant.best if copy is None else greatest([claimant.best, copy])
            heard = claimant._replace(best=best, answered=put(claimant.answered, r, True))
            after = _with(state, e, heard)
            if "nofence" not in self._dropped:
                after = after._replace(replicas=put(state.replicas, r, Replica(e, copy)))
            yield (e, "fences replica", r, "at", copy or ("nothing" if fence == FRESH else "a stub")), after
        if self._is_enough(state, claimant):
            yield from self._lay(state, e, claimant)

    def _is_enough(self, state: State, claimant: Claimant) -> bool:
        if claimant.whole or sum(claimant.answered) >= answers_needed(claimant.asked):
            return True
        nothing = state.register.copy == claimant.best == BIRTH
        return "silent" in self._dropped and nothing and any(claimant.answered)

    def _lay(self, state: State, e: int, claimant: Claimant) -> Steps:
        best = greatest([claimant.best, state.register.copy])
        length = len(best.log)
        mine = best if "same" in self._dropped else copy_of(Generation(epoch(e), 0), best.folded, length, best.log)
        told, safe = state.told, -1
        if "show" in self._dropped:
            told |= best.held
        if self._world.late and "nostore" not in self._dropped:
            exact = state.register.copy.position == best.position
            if exact:
                told, safe = told | best.held, length
            state = _put_manifest(state, self._named(state.register, e, exact=exact))
        elif "stamp" in self._dropped:
            state = _put_manifest(state, self._named(state.register, e, exact=False))
        nobody = (-1,) * len(state.replicas)
        serving = Serving(mine, best.generation, safe, nobody, True, claimant.asked)
        yield (e, "lays", best), _with(state._replace(told=told), e, serving)

    def _named(self, register: Register, e: int, *, exact: bool) -> Register:
        """The takeover's manifest: the new generation's name only on exactly what was laid."""
        return fenced(register, e, rename=exact or "stamp" in self._dropped)

    # The replica leg.

    def _replicate(self, state: State, e: int, owner: Serving) -> Steps:
        full = self._written(e, owner.copy)[-1]
        for r, (fence, copy) in enumerate(state.replicas):
            if not (owner.members[r] or (owner.pending is not None and owner.pending[r])):
                continue
            if fence == FRESH and state.row.owner != e and "anyone" not in self._dropped:
                continue
            for raised, becomes in self._deliveries(e, owner, full, state.replicas[r]):
                length = max(len(owner.copy.log), min(len(becomes.log), len(full.log)))
                grown = _grown(owner, full, length)
                yield (e, "to replica", r, "->", becomes), self._acked(state, e, grown, r, Replica(raised, becomes))
            if copy is not None and self._is_news(owner, r, copy) and says(e, owner.copy, fence, copy):
                after = self._acked(state, e, owner, r, Replica(max(fence, e), copy))
                yield (e, "hears that replica", r, "has", copy), after

    def _is_news(self, owner: Serving, r: int, copy: Copy) -> bool:
        """Whether an empty append would be answered with more than the owner knows of."""
        return (
            copy.generation == owner.copy.generation
            and owner.acks[r] < len(copy.log)
            and copy.log == owner.copy.log[: len(copy.log)]
        )

    def _deliveries(self, e: int, owner: Serving, full: Copy, replica: Replica) -> Iterator[tuple[int, Copy]]:
        """All that one message may make of a replica's fence and copy. `full`: all that the owner may write."""
        fence, copy = replica
        if not self._dropped & REPLICA_RULES:
            yield from delivered(e, full, owner.source, fence, copy)
        elif fence <= e:
            yield from ((e, becomes) for becomes in self._mistaken(e, owner, full, copy))

    def _mistaken(self, e: int, owner: Serving, full: Copy, copy: Copy | None) -> Iterator[Copy]:
        """What a replica makes of a message that goes by the product's rules but for those dropped."""
        generation, begin, log = full.generation, full.start, full.log
        if copy is not None and copy.generation == generation:
            held = len(copy.log)
            if "same" in self._dropped and copy.log != log[:held]:
                yield full  # cuts the other owner's tail
            for to in range(held + 1, len(log) + 1):
                yield _cut(full, to)
            return
        if copy is not None and e and copy.generation == owner.source and generation == Generation(epoch(e), 0):
            held = len(copy.log)
            for to in range(held + 1, (len(log) if "extend" in self._dropped else begin) + 1):
                yield copy_of(copy.generation, copy.folded, copy.start, log[:to])  # caught up under the name it has
            if "eager" in self._dropped and held < begin:
                yield copy_of(generation, copy.folded, begin, copy.log)
            if "tail" in self._dropped and held > begin:
                yield copy_of(generation, copy.folded, begin, copy.log)
                return
        if "patch" in self._dropped and copy is not None and generation.counter:
            # What the dirty chunks do not reach stays as it lies.
            mixed = tuple(write for write in copy.log[: copy.start] if write not in log)
            yield copy_of(generation, len(mixed) + begin, len(mixed) + begin, mixed + log[:begin])
            return
        yield _cut(full, begin)  # relabelled and cut, folded, or a staged base swapped in: exactly the start

    def _acked(self, state: State, e: int, owner: Serving, r: int, replica: Replica) -> State:
        """The replica has this copy and says so."""
        copy = replica.copy
        assert copy is not None
        if copy.generation == owner.copy.generation or "count" in self._dropped:
            owner = owner._replace(acks=put(owner.acks, r, max(owner.acks[r], len(copy.log))))
        length = max(owner.safe, self._durable(owner))
        told = state.told | set(owner.copy.log[: max(length, 0)])
        return _with(state._replace(replicas=put(state.replicas, r, replica), told=told), e, owner)

    def _durable(self, owner: Serving) -> int:
        if owner.pending is None:
            return reached(owner.acks, (owner.members,))
        if "noset" in self._dropped:
            return reached(owner.acks, (tuple(a or b for a, b in zip(owner.members, owner.pending, strict=True)),))
        return reached(owner.acks, (owner.members, owner.pending))

    # The store leg, members, rotation.

    def _put(self, state: State, e: int, owner: Serving) -> Steps:
        reread = "reread" in self._dropped and e > 0 and owner.copy.generation == owner.source
        if not owner.current and not reread:
            return
        for copy in self._written(e, owner.copy):
            if state.register.copy is copy and owner.pending is None:
                continue
            if "reread" not in self._dropped:
                becomes = landed(state.register, e, copy, owner.pending)
            else:
                becomes = Register(max(state.register.fence, e), copy, owner.pending or owner.members)
            after = _put_manifest(state, becomes)
            known = owner._replace(copy=copy, safe=len(copy.log), current=True, members=becomes.members, pending=None)
            yield (e, "puts", copy), _with(after._replace(told=state.told | copy.held), e, known)
            if owner.pending is not None:
                yield (
                    (e, "puts", copy, "and does not hear of it"),
                    _with(after, e, owner._replace(copy=copy, current=False)),
                )
        if "covers" in self._dropped and owner.pending is not None:
            begin = max(owner.copy.start, len(state.register.copy.log))
            for length in range(begin, len(owner.copy.log)):  # what there was when a segment set out
                short = landed(state.register, e, _cut(owner.copy, length), owner.pending)
                yield (
                    (e, "puts", short.copy, "as its segment had it, and does not hear of it"),
                    _with(_put_manifest(state, short), e, owner._replace(current=False)),
                )

    def _turn(self, state: State, e: int, owner: Serving) -> Steps:
        """Begin a rotation, or a change of members."""
        turns = owner.copy.generation.counter if owner.copy.generation.epoch == epoch(e) else 0
        if turns < self._world.rotations[e]:
            for copy in self._written(e, owner.copy):
                if (length := len(copy.log)) > copy.start:
                    turned = copy_of(Generation(epoch(e), turns + 1), length, length, copy.log)
                    yield (e, "rotates at", length), _with(state, e, owner._replace(copy=turned))
        if e in self._world.change and owner.pending is None and not state.forgets:
            for leaving, into in self._changes(state, owner.members):
                members = put(put(owner.members, leaving, False), into, True)
                label = (e, "replaces replica", leaving, "by", into)
                yield label, _with(state, e, owner._replace(pending=members))

    def _changes(self, state: State, members: Flags) -> Iterator[tuple[int, int]]:
        for leaving, member in enumerate(members):
            for into, (fence, _) in enumerate(state.replicas):
                if member and not members[into] and fence == FRESH:
                    yield leaving, into

    def _release(self, state: State, e: int, owner: Serving) -> Steps:
        if not self._world.releases[e] or state.row != Row(e, None) or owner.pending is not None:
            return
        if any(sender == e for sender, _ in state.flying):
            return
        dirty = "dirty" in self._dropped
        for copy in self._written(e, owner.copy) if dirty else [owner.copy]:
            if dirty or owner.safe == len(copy.log):
                sent = (e, Release(copy, owner.current, owner.members))
                after: Owner = owner if "serveon" in self._dropped else Over(copy if self._world.own else None)
                yield (e, "sends its release at", copy), _with(state._replace(flying=state.flying | {sent}), e, after)

    def _land_releases(self, state: State) -> Steps:
        for sender, release in state.flying:
            if state.row == Row(sender, None):
                flying = state.flying - {(sender, release)}
                yield ("the release of", sender, "lands"), state._replace(row=Row(sender, release), flying=flying)

    def _forget(self, state: State) -> Steps:
        if state.forgets == self._world.forgets:
            return
        for r, (fence, copy) in enumerate(state.replicas):
            if copy is None:
                continue
            if not self._world.change and state.register.copy.position >= copy.position:
                stub = Replica(0 if "unfenced" in self._dropped else fence, None)
                after = state._replace(replicas=put(state.replicas, r, stub), forgets=state.forgets + 1)
                yield ("replica", r, "leaves a stub: the manifest covers it"), after
            if "wiped" in self._dropped or not self._is_named(state, r):
                after = state._replace(replicas=put(state.replicas, r, Replica(FRESH, None)), forgets=state.forgets + 1)
                yield ("replica", r, "in no set, forgets everything"), after

    def _is_named(self, state: State, r: int) -> bool:
        pending = [owner.pending for owner in state.owners if isinstance(owner, Serving) and owner.pending is not None]
        return any(members[r] for members in (state.register.members, *pending))

    def _written(self, e: int, copy: Copy) -> list[Copy]:
        """The copy, and what it is after each write the owner may still make."""
        done = sum(owner == e for owner, _ in copy.log)
        copies = [copy]
        for write in range(done, self._world.writes[e]):
            log = (*copies[-1].log, (e, write))
            copies.append(copy_of(copy.generation, copy.folded, copy.start, log))
        return copies

    # What may never be, and what makes no difference.

    def broken(self, state: State) -> str:
        newest = next(owner for owner in reversed(state.owners) if isinstance(owner, Serving | Over))
        if isinstance(newest, Serving) and not state.told <= newest.copy.held:
            return "the newest owner lacks a write somebody was told of"
        if not _prefixes(state):
            return "copies of one generation are not prefixes of one log"
        if not state.told <= state.register.copy.held:
            members = state.register.members
            held = [copy for (_, copy), member in zip(state.replicas, members, strict=True) if member]
            for answers in combinations(held, answers_needed(members)):
                known = [copy for copy in answers if copy is not None]
                if not state.told <= greatest([*known, state.register.copy]).held:
                    return "a read quorum lacks a write somebody was told of"
        return ""

    def _without_the_powerless(self, state: State) -> State:
        """An owner that every member and the manifest refuse for ever is over, once a newer one serves.

        Where a claimant may come upon its file, that stays, and it may write on in it.
        """
        newest = max(e for e, owner in enumerate(state.owners) if isinstance(owner, Serving | Over))
        for e, owner in enumerate(state.owners[:newest]):
            if isinstance(owner, Serving) and not owner.current and self._is_refused(state, e, owner):
                nobody, none = (-1,) * len(state.replicas), (False,) * len(state.replicas)
                alone = Serving(owner.copy, owner.source, -1, nobody, False, none)
                state = _with(state, e, alone if self._world.own else Over(None))
        return state

    def _is_refused(self, state: State, e: int, owner: Serving) -> bool:
        counted = owner.members if owner.pending is None else map(bool.__or__, owner.members, owner.pending)
        return all(
            not counts or fence > e or fence == FRESH
            for counts, (fence, _) in zip(counted, state.replicas, strict=True)
        )


def _with(state: State, e: int, owner: Owner) -> State:
    return state._replace(owners=put(state.owners, e, owner))


def _put_manifest(state: State, register: Register) -> State:
    return superseded(state)._replace(register=register)


def _cut(copy: Copy, length: int) -> Copy:
    return copy_of(copy.generation, copy.folded, copy.start, copy.log[:length])


def _grown(owner: Serving, full: Copy, length: int) -> Serving:
    return owner if length == len(owner.copy.log) else owner._replace(copy=_cut(full, length))


def _prefixes(state: State) -> bool:
    logs: dict[Generation, Copy] = {}
    copies = [copy for _, copy in state.replicas]
    copies.append(state.register.copy)
    copies += [
        owner.copy if isinstance(owner, Serving) else owner.file
        for owner in state.owners
        if isinstance(owner, Serving | Over)
    ]
    for copy in copies:
        if copy is None:
            continue
        other = logs.setdefault(copy.generation, copy)
        if other is copy:
            continue
        short, long = sorted((copy, other), key=lambda each: len(each.log))
        if long.log[: len(short.log)] != short.log:
            return False
        logs[copy.generation] = long
    return True
