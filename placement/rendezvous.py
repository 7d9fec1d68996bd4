"""Weighted rendezvous hashing: who comes first for an object, without anyone keeping a table. Pure.

Each candidate's score depends on the object and on itself only, so a node that comes or goes moves no more than its
own share. Shares follow the weights. Used to choose replicas (PROTOCOLS section 7), homes and sweepers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blake3 import blake3


@dataclass(frozen=True, slots=True)
class Candidate:
    """`id`: a node id or a copy id. A weight of 0 or less takes it out. An empty zone is a zone like any other."""

    id: str
    weight: float = 1.0
    zone: str = ""


def rank(object_id: str, candidates: Iterable[Candidate]) -> list[Candidate]:
    """The first is the object's favourite; ties, which need equal hashes, go by id."""
    wanted = (candidate for candidate in candidates if candidate.weight > 0)
    return sorted(wanted, key=lambda candidate: (-score(object_id, candidate), candidate.id))


def spread(object_id: str, candidates: Iterable[Candidate], count: int) -> list[Candidate]:
    """The first `count` by rank, distinct zones first: no zone has two of them before every zone has one."""
    turns: dict[str, int] = {}
    placed: list[tuple[int, int, Candidate]] = []
    for place, candidate in enumerate(rank(object_id, candidates)):
        turn = turns.get(candidate.zone, 0)
        turns[candidate.zone] = turn + 1
        placed.append((turn, place, candidate))
    placed.sort(key=lambda entry: entry[:2])
    return [candidate for _, _, candidate in placed[:count]]


def score(object_id: str, candidate: Candidate) -> float:
    """-weight / ln(u), u uniform in (0, 1) from blake3(object id ‖ 0x00 ‖ candidate id)."""
    digest = blake3(f"{object_id}\0{candidate.id}".encode()).digest(length=7)
    uniform = ((int.from_bytes(digest, "big") >> 3) + 0.5) / (1 << 53)
    return -candidate.weight / math.log(uniform)


def favourite(object_id: str, candidates: Sequence[Candidate]) -> Candidate | None:
    """The first of `rank`, None when there is none."""
    return next(iter(rank(object_id, candidates)), None)
