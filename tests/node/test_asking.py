"""What counts as a member's answer at a takeover (PROTOCOLS section 5, step 2; section 7, "stub")."""

from __future__ import annotations

from domicile.node import manifest as manifests
from domicile.node.manifest import Reach, Stamp
from domicile.node.sqlite.wal import FRAME_HEADER, LOG_HEADER, PAGE_BYTES
from domicile.node.takeover.asking import counts
from domicile.node.takeover.lay import is_whole
from domicile.node.wire.messages import FenceAnswer
from domicile.placement.records import FIRST_INCARNATION, Birth, Epoch, Generation, Held, ObjectKey, Position, Released

KEY, EPOCH = ObjectKey("acme", "Room", "lobby"), Epoch(1, 10)
ONE, TWO = (LOG_HEADER + frames * (FRAME_HEADER + PAGE_BYTES) for frames in (1, 2))
BORN = manifests.birth(KEY, FIRST_INCARNATION, EPOCH, Birth(("a", "b"), 2))
MANIFEST = manifests.extended(
    BORN, Stamp(EPOCH, b"one"), Reach(BORN.generation, 0, ONE, bytes(16)), segment=None, tail=bytes(ONE)
)


def at(length: int) -> Position:
    return Position(FIRST_INCARNATION, Generation(EPOCH, 0), length)


def test_a_member_that_holds_nothing_answers() -> None:
    """A copy named a moment ago was in no quorum yet, and says so; another copy in its place says nothing for it."""
    assert counts(FenceAnswer("a", None, None), "a", MANIFEST)
    assert not counts(FenceAnswer("new", None, None), "a", MANIFEST)
    assert not counts(FenceAnswer("", None, None), "a", MANIFEST)


def test_a_stub_answers_for_what_the_manifest_covers() -> None:
    """A copy that was let go had no more than the manifest of then; one above the manifest of now may be missed."""
    assert counts(FenceAnswer("a", None, at(ONE), bytes(16), True), "a", MANIFEST)
    assert not counts(FenceAnswer("a", None, at(TWO), bytes(16), True), "a", MANIFEST)
    assert counts(FenceAnswer("a", None, at(TWO), bytes(16)), "a", MANIFEST)


def test_nobody_need_be_asked_after_a_clean_release_alone() -> None:
    """The manifest must be the one the release left: by its tag, at its position."""
    released = Released(at(ONE), bytes(16), "tag", ("a", "b"), 2)
    assert is_whole(released, MANIFEST, "tag")
    assert not is_whole(released, MANIFEST, "another")
    assert not is_whole(Released(at(TWO), bytes(16), "tag", ("a", "b"), 2), MANIFEST, "tag")
    assert not is_whole(Held("node", "nonce"), MANIFEST, "tag")
    assert not is_whole(None, MANIFEST, "tag")
