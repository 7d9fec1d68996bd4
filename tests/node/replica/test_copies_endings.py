"""What becomes of copies: kept for an incident, left as a stub, deleted, promoted, fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from copies import E1, E2, E3, FRAME, KEY, LIFE, OBJECT, Node, Owner, born

from domicile.node.errors import BlobMissing, Corrupt
from domicile.node.sqlite.birth import IMAGE
from domicile.node.takeover.own_copy import Files, find
from domicile.node.wire.messages import (
    Dropped,
    Fence,
    FencedBy,
    FetchChunk,
    FetchLog,
    Holds,
)
from domicile.placement.records import Generation, Position


def test_what_an_incident_may_want_is_kept_first(play: Any) -> None:
    """A tail above the served position of an open incident is in lost/ before a relabel cuts it."""

    async def story(node: Node, owner: Owner) -> None:
        served = await born(node, owner)
        owner.grow(2)
        whole = owner.log()
        await node.one(owner.append(served))
        incident = (E2, Position(LIFE, owner.generation, served))
        answer = await node.one(owner.relabel(served, E2, incidents=(incident,)))
        assert answer == Holds(LIFE, Generation(E2, 0), served)
        kept = node.root / "lost" / KEY.id / str(E2)
        assert (kept / "db-wal").read_bytes() == whole
        assert (kept / "db").read_bytes() == IMAGE
        assert node.lost == [(KEY.id, E2)]

    play(story)


def test_an_idle_copy_leaves_a_stub(play: Any) -> None:
    """A copy the manifest covers leaves the disk; its fence and position stay, and a base needs no claim to be read."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        at = Position(LIFE, owner.generation, length)
        assert not await node.replicas.let_go(KEY.id, Position(LIFE, owner.generation, length - FRAME))
        assert await node.replicas.let_go(KEY.id, at)
        await node.replicas.checkpoint()
        assert node.files() == ["meta"]
        await node.reopen()
        answer = await node.fence(E1)
        assert (answer.stub, answer.position, answer.checksum) == (True, at, owner.at(length))
        old = owner.birth()
        node.claims.clear()
        await node.fence(E2)
        assert await node.one(old) == FencedBy(E2)
        assert node.claims == []

    play(story)


def test_a_copy_that_cannot_be_read_is_not_said_to_be_nothing(play: Any) -> None:
    """Holding nothing is an answer, and only of a copy that never held anything: one that rotted gives none."""

    async def story(node: Node, owner: Owner) -> None:
        never = await node.fence(E1)
        assert (never.copy_id, never.position, never.stub) == (node.replicas.copy_id, None, False)
        await born(node, owner)
        await node.replicas.checkpoint()
        await node.replicas.close()
        (meta,) = node.root.glob("replicas/**/meta")
        meta.write_bytes(b"rot" + meta.read_bytes()[3:])
        await node.open()
        for _ in range(2):
            answer = await node.fence(E2)
            assert answer.copy_id != node.replicas.copy_id
            await node.reopen()

    play(story)


def test_copies_nobody_speaks_to_are_named(play: Any) -> None:
    """Idle copies are listed, those in use and stubs are not."""

    async def story(node: Node, owner: Owner) -> None:
        await born(node, owner)
        await node.replicas.checkpoint()
        assert node.replicas.idle(1e9) == []
        assert node.replicas.idle(-1.0) == [KEY.id]
        await node.reopen()
        assert node.replicas.idle(-1.0) == [KEY.id]
        at = (await node.fence(E1)).position
        await node.replicas.let_go(KEY.id, at)
        assert node.replicas.idle(-1.0) == []

    play(story)


def test_a_deleted_object_leaves_nothing(play: Any) -> None:
    """Field case 36: a deletion drops copy and fence; a copy of an earlier life is void in the next."""

    async def story(node: Node, owner: Owner) -> None:
        await born(node, owner)
        await node.replicas.dropped(Dropped(OBJECT, LIFE))
        assert await node.position() is not None
        await node.replicas.dropped(Dropped(OBJECT, E2))
        assert (await node.fence(E1)).position is None
        await node.replicas.dropped(Dropped(OBJECT, E2))
        await node.replicas.checkpoint()
        assert not (node.root / "replicas" / KEY.id).exists()
        await born(node, owner)
        assert (await node.replicas.fence(Fence(OBJECT, E3, E3))).position is None
        owner.grow(1)
        assert isinstance(await node.one(owner.append(0)), FencedBy)

    play(story)


def test_a_node_that_becomes_home_takes_its_copy_along(play: Any, tmp_path: Path) -> None:
    """Promotion: the files are where a lay finds them, at the acked position; a stub and the fence stay behind."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        owner.grow(60, size=30_000)
        await node.one(owner.append(length))
        await node.one(owner.fold())
        owner.grow(2)
        at = Position(LIFE, owner.generation, owner.length)
        await node.one(owner.append(0))
        files = Files(str(node.root / "objects" / KEY.id))
        await node.fence(E2)
        assert await node.replicas.promote(KEY, E1, files) is None
        assert await node.replicas.promote(KEY, E2, files) == at
        for _ in range(2):
            copy = find(node.disk, files, LIFE)
            assert copy is not None
            assert (copy.position, copy.start, copy.shape, copy.log) == (at, 0, owner.shape, owner.log())
            assert copy.sidecar.checksum == owner.at(at.length)
            answer = await node.fence(E2)
            assert (answer.stub, answer.position) == (True, at)
            assert await node.one(owner.append(0)) == FencedBy(E2)
            await node.reopen()

    play(story)


def test_a_promotion_cut_short_is_finished_at_the_next_start(play: Any) -> None:
    """Whatever step the process dies at, the files arrive or are still a copy."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        at = Position(LIFE, owner.generation, length)
        files = Files(str(node.root / "objects" / KEY.id))
        real, node.disk.truncate = node.disk.truncate, broken  # type: ignore[method-assign]
        with pytest.raises(OSError, match="cut short"):
            await node.replicas.promote(KEY, E2, files)
        assert find(node.disk, files, LIFE) is None
        node.disk.truncate = real  # type: ignore[method-assign]
        await node.reopen()
        copy = find(node.disk, files, LIFE)
        assert copy is not None
        assert copy.position == at
        assert await node.replicas.promote(KEY, E2, files) == at

    play(story)


def broken(path: str, length: int, *, sync: bool) -> None:
    raise OSError("cut short")


def test_a_wiped_directory_is_another_copy(play: Any) -> None:
    """The copy id is kept with the journal: without it the node is another member and holds nothing."""

    async def story(node: Node, owner: Owner) -> None:
        await born(node, owner)
        old = node.replicas.copy_id
        await node.reopen()
        assert node.replicas.copy_id == old
        (node.root / "replicas" / "journal").unlink()
        node.root = node.root  # the same place
        await node.reopen()
        assert (await node.fence(E1)).position is None
        assert (await node.fence(E1)).copy_id == node.replicas.copy_id

    play(story)


def test_a_copy_is_fetched_only_as_what_it_is(play: Any) -> None:
    """Log and chunks are given for the generation they belong to, and rot is named, not served."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        fetched = await node.replicas.fetch_log(FetchLog(OBJECT, LIFE, owner.generation, 32, length))
        assert fetched == owner.log()[32:]
        with pytest.raises(BlobMissing):
            await node.replicas.fetch_log(FetchLog(OBJECT, LIFE, owner.generation, 0, length + FRAME))
        with pytest.raises(BlobMissing):
            await node.replicas.fetch_log(FetchLog(OBJECT, LIFE, Generation(E2, 0), 0, length))
        await node.one(owner.fold())
        digest = owner.shape.hashes[0]
        numbers = [name for name in node.files() if name.isdecimal()]
        base = node.root / "replicas" / KEY.id / numbers[-1]
        with base.open("r+b") as file:
            file.seek(5000)
            file.write(b"rotten")
        with pytest.raises(Corrupt):
            await node.replicas.fetch_chunk(FetchChunk(OBJECT, LIFE, owner.generation, 0, digest))

    play(story)
