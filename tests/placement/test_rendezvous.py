"""Rendezvous hashing decides where copies lie: golden vectors, shares, and little movement."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from domicile.placement.rendezvous import Candidate, favourite, rank, spread

NODES = [Candidate(f"n{n}", zone=f"z{n % 3}") for n in range(6)]
GOLDEN_RANK = [["n5", "n2", "n4", "n1", "n3", "n0"], ["n4", "n1", "n2", "n3", "n5", "n0"]]
GOLDEN_SPREAD = ["n5", "n4", "n3", "n2"]
CANDIDATES = st.lists(
    st.builds(Candidate, st.text("abcdef", min_size=1), st.floats(0.1, 10), st.sampled_from(["", "x", "y"])),
    unique_by=lambda candidate: candidate.id,
    max_size=8,
)


def ids(candidates: list[Candidate]) -> list[str]:
    return [candidate.id for candidate in candidates]


def test_golden_orders() -> None:
    """The order of a given object among given nodes never changes between releases."""
    assert [ids(rank(text, NODES)) for text in ("00" * 32, "ff" * 32)] == GOLDEN_RANK
    assert ids(rank("00" * 32, [Candidate("a", 1.0), Candidate("b", 8.0), Candidate("c", 0.0)])) == ["b", "a"]
    assert ids(spread("00" * 32, NODES, 4)) == GOLDEN_SPREAD


def test_shares_follow_the_weights() -> None:
    """A node of weight 3 is the favourite of three times as many objects."""
    weighted = [Candidate("small", 1.0), Candidate("large", 3.0)]
    firsts = Counter(rank(f"{n:064x}", weighted)[0].id for n in range(4000))
    assert 0.72 < firsts["large"] / 4000 < 0.78


@given(CANDIDATES, st.text("0123456789abcdef", min_size=1))
def test_a_node_that_goes_moves_only_its_own(candidates: list[Candidate], object_id: str) -> None:
    """The order of the others stays, and the order of the input says nothing."""
    order = rank(object_id, candidates)
    assert rank(object_id, list(reversed(candidates))) == order
    for gone in candidates:
        assert rank(object_id, [c for c in candidates if c != gone]) == [c for c in order if c != gone]
    assert favourite(object_id, candidates) == (order[0] if order else None)


@given(CANDIDATES, st.integers(0, 9), st.text("0123456789abcdef", min_size=1))
def test_zones_come_first(candidates: list[Candidate], count: int, object_id: str) -> None:
    """No zone has two before every zone has one; within a zone, rank decides."""
    chosen = spread(object_id, candidates, count)
    assert len(chosen) == min(count, len(candidates))
    per_zone = Counter(candidate.zone for candidate in chosen)
    left = [candidate for candidate in candidates if candidate not in chosen]
    if per_zone and left:
        assert all(per_zone[candidate.zone] >= max(per_zone.values()) - 1 for candidate in left)
    order = rank(object_id, candidates)
    for zone in per_zone:
        assert [c for c in chosen if c.zone == zone] == [c for c in order if c.zone == zone][: per_zone[zone]]
