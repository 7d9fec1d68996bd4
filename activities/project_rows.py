"""A project's rows in control as operations change them: the term counter, the home, the mark of a move (section 4).

The mark, `projects/<id>/move`, names the move under way. Whatever a move writes in control is conditioned on its mark,
so an attempt that comes late, after a cancel or another move, conflicts.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from domicile.activities.world import World
from domicile.placement.followed import Seen, decode
from domicile.placement.records import ProjectRow, StandinRow, encode
from domicile.placement.store import At, Committed, Condition, Delete, Mutation, Put

DRAWS_MAX = 8
PREPARING, FLIPPED = "preparing", "flipped"


class OvertakenRowError(Exception):
    """A row that a step goes by is another's by now."""


class MarkRow(msgspec.Struct, frozen=True):
    """`projects/<id>/move` in control. `run`: the workflow run that began it. `term`: the last one drawn for it.

    `source`: the region that it leaves, whose gate it has closed; empty where the gate was left as it was.
    """

    to: str
    step: str
    run: str
    term: int
    source: str = ""


@dataclass(frozen=True, slots=True)
class ProjectSeen:
    """The policy and the mark, from one snapshot; None: absent."""

    policy: Seen[ProjectRow] | None
    mark: Seen[MarkRow] | None

    @property
    def mark_version(self) -> int:
        return self.mark.version if self.mark is not None else 0


class ProjectRows:
    """Everything raises StoreUnavailable."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _mark(self, project: str) -> str:
        return f"{self._world.control_keys.project(project)}/move"

    async def read(self, project: str) -> ProjectSeen:
        keys = self._world.control_keys.project(project), self._mark(project)
        found = await self._world.control.read(keys)
        policy, mark = (found.get(key) for key in keys)
        return ProjectSeen(decode(policy, ProjectRow) if policy else None, decode(mark, MarkRow) if mark else None)

    async def registered(self, region: str) -> bool:
        key = self._world.control_keys.region(region)
        return key in await self._world.control.read([key])

    async def place(self, region: str) -> str:
        """The region itself, or who stands in for one that was not registered when it was needed."""
        regions, standins = self._world.control_keys.region(region), self._world.control_keys.standin(region)
        found = await self._world.control.read([regions, standins])
        standin = found.get(standins)
        return decode(standin, StandinRow).row.region if standin is not None else region

    async def draw(
        self, project: str, mark: int, *, to: str, step: str, run: str, home: str = "", source: str = ""
    ) -> Seen[MarkRow]:
        """The next term, and the mark with it, if the mark still is at version `mark`; `home` moves the project.

        Done before by this very step of this run: what stands is given. Raises OvertakenRowError.
        """
        policy_key, mark_key = self._world.control_keys.project(project), self._mark(project)
        for _ in range(DRAWS_MAX):
            seen = await self.read(project)
            if seen.policy is None:
                raise OvertakenRowError(f"there is no project {project}")
            if seen.mark is not None and (seen.mark.row.run, seen.mark.row.step, seen.mark.row.to) == (run, step, to):
                return seen.mark
            if seen.mark_version != mark:
                raise OvertakenRowError(f"another move of {project} has begun")
            term = seen.policy.row.term + 1
            policy = msgspec.structs.replace(seen.policy.row, term=term, region=home or seen.policy.row.region)
            row = MarkRow(to, step, run, term, source)
            outcome = await self._world.control.write(
                [At(policy_key, seen.policy.version), At(mark_key, mark)],
                [Put(policy_key, encode(policy)), Put(mark_key, encode(row))],
            )
            if isinstance(outcome, Committed):
                return Seen(row, outcome.version, 0)
        raise OvertakenRowError(f"the policy of {project} keeps changing")

    async def draw_term(self, project: str) -> int:
        """The next term of the project's counter, without a mark. One that is drawn twice is lost, and no matter."""
        key = self._world.control_keys.project(project)
        for _ in range(DRAWS_MAX):
            seen = await self.read(project)
            if seen.policy is None:
                raise OvertakenRowError(f"there is no project {project}")
            policy = msgspec.structs.replace(seen.policy.row, term=seen.policy.row.term + 1)
            conditions: list[Condition] = [At(key, seen.policy.version)]
            mutations: list[Mutation] = [Put(key, encode(policy))]
            if isinstance(await self._world.control.write(conditions, mutations), Committed):
                return policy.term
        raise OvertakenRowError(f"the policy of {project} keeps changing")

    async def clear(self, project: str, mark: int) -> None:
        """Remove the mark, if it is this one."""
        key = self._mark(project)
        await self._world.control.write([At(key, mark)], [Delete(key)])
