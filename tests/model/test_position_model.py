"""The model of positions, takeovers, releases, rotations and members (PROTOCOLS sections 5 and 7)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs
from smallworlds.catalog import MODELS

from domicile.node import manifest as manifests
from domicile.node import quorum
from domicile.node.quorum import Members
from domicile.node.replica import rules as replica_rules
from domicile.node.replica import state as replica_state
from domicile.node.replica.journal_record import Relabelled
from domicile.node.replica.state import State
from domicile.node.takeover import own_copy

POSITION = MODELS["position"]


@pytest.mark.parametrize("world", POSITION.asked_for())
def test_no_answered_write_is_missing(world: str) -> None:
    """As designed, nothing that anybody was told is missing after any takeover, in every state of the world."""
    found = POSITION.search(world)
    assert not found.broken, str(found)


@pytest.mark.parametrize("rule", POSITION.rules)
def test_every_rule_of_positions_is_needed(rule: str) -> None:
    """Without the rule an answered write is lost, and the search finds how."""
    found = POSITION.without(rule)
    assert found.broken, f"without the rule that {POSITION.rules[rule]}: {found}"
    assert found.trace


def one_too_few(members: Members) -> int:
    return len(members.copies) - members.quorum if members.counts else 0


def in_either(acks: dict[str, int], sets: list[Members]) -> int:
    return max(quorum.landed(acks, members) for members in sets)


def by_one_fewer(acks: dict[str, int], members: Members) -> int:
    return sorted((acks.get(copy, quorum.NOTHING) for copy in members.copies), reverse=True)[members.quorum - 2]


def always_named(manifest: manifests.Manifest, stamp: manifests.Stamp, *, rename: bool) -> manifests.Manifest:
    return RIGHT_FENCED(manifest, stamp, rename=True)


def whatever_is_there(*found: object) -> own_copy.OwnCopy:
    return object()  # type: ignore[return-value]


def uncut(state: State, change: Relabelled) -> State:
    """The new generation's name on all that the copy has."""
    assert state.held is not None
    held = structs.replace(state.held, generation=change.to, start=change.length)
    return structs.replace(state, fence=change.epoch, held=held)


RIGHT_FENCED = manifests.fenced
WRONG: dict[str, tuple[object, str, Callable[..., object], str]] = {
    "a read quorum of one too few": (quorum, "read_quorum", one_too_few, "lag"),
    "a quorum in either set": (quorum, "landed_in_all", in_either, "set"),
    "a quorum of one too few": (quorum, "landed", by_one_fewer, "lag"),
    "the new name on any content": (manifests, "fenced", always_named, "late"),
    "a replica that refuses nobody": (replica_rules, "_refused", lambda *_: None, "lag"),
    "a relabel that does not cut": (replica_state, "_relabelled", uncut, "set"),
    "any copy for a clean one": (own_copy, "find_released", whatever_is_there, "stub"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_in_the_code_is_found(mistake: str, wrong_code: pytest.MonkeyPatch) -> None:
    """Quorums, manifests, replicas and released copies are the product's own here: a wrong one loses a write."""
    module, name, wrong, world = WRONG[mistake]
    wrong_code.setattr(module, name, wrong)
    found = POSITION.search(world)
    assert found.broken, f"{mistake}: {found}"
