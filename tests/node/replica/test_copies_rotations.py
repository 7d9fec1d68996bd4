"""Copies that are folded as their owner folds, or staged anew."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from blake3 import blake3
from copies import E1, E2, FRAME, KEY, LIFE, OBJECT, Node, Owner, born

from domicile.node.sqlite.birth import IMAGE
from domicile.node.wire.messages import (
    Elsewhere,
    FencedBy,
    FetchChunk,
    Holds,
)
from domicile.placement.records import Generation, Position


def test_a_rotation_is_folded_here(play: Any, tmp_path: Path) -> None:
    """A copy exactly there folds its own log; base and generation are the owner's, before and after a crash."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        for _ in range(3):
            owner.grow(40, size=30_000)
            await node.one(owner.append(length))
            folding = owner.fold()
            assert await node.one(folding) == Holds(LIFE, owner.generation, 0)
            length = 0
        owner.grow(1)
        assert await node.one(owner.append(0)) == Holds(LIFE, owner.generation, owner.length)
        twin = await node.crashed_copy(tmp_path / "twin")
        for each in (node, twin):
            answer = await each.fence(E1)
            assert (answer.position.length, answer.hashes) == (owner.length, owner.shape.hashes)
            for index, digest in enumerate(owner.shape.hashes):
                chunk = await each.replicas.fetch_chunk(FetchChunk(OBJECT, LIFE, owner.generation, index, digest))
                assert chunk == owner.path.read_bytes()[index << 20 : (index + 1) << 20]
        await node.replicas.checkpoint()
        assert len([name for name in node.files() if name.isdecimal()]) == 2
        await twin.replicas.close()

    play(story)


def test_a_fold_with_another_result_is_staged(play: Any) -> None:
    """Dirty chunks are verified before anything is written: a base that would differ is fetched instead."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        owner.grow(40, size=30_000)
        await node.one(owner.append(length))
        (log,) = (path for path in (node.root / "replicas" / KEY.id).iterdir() if path.name.isdecimal())
        with log.open("r+b") as file:
            file.seek(log.stat().st_size - FRAME + 24 + 50)
            file.write(b"rotten")
        assert await node.one(owner.fold()) == Holds(LIFE, owner.generation, 0)
        digest = owner.shape.hashes[0]
        fetched = await node.replicas.fetch_chunk(FetchChunk(OBJECT, LIFE, owner.generation, 0, digest))
        assert blake3(fetched).digest() == digest

    play(story)


def test_a_base_is_staged_with_its_log(play: Any) -> None:
    """A copy from nothing of a generation that began late: chunks and log come from the owner, then appends go on."""

    async def story(node: Node, owner: Owner) -> None:
        owner.grow(60, size=30_000)
        owner.fold()
        owner.grow(5)
        owner.generation, owner.start = Generation(E2, 0), owner.length
        owner.epoch = E2
        assert await node.one(owner.base()) == Holds(LIFE, owner.generation, owner.start)
        owner.grow(1)
        assert await node.one(owner.append(owner.start)) == Holds(LIFE, owner.generation, owner.length)
        await node.reopen()
        answer = await node.fence(E2)
        assert (answer.checksum, answer.start) == (owner.at(owner.length), owner.start)

    play(story)


def test_a_staging_that_was_killed_goes_on(play: Any) -> None:
    """Killed between pieces nothing is wrong: positions are the old copy's, and the next attempt fetches the rest."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        first = await node.position()
        owner.grow(100, size=60_000)
        owner.fold()
        owner.fold_count = 0  # type: ignore[attr-defined]
        asked: list[int] = []
        stop = asyncio.Event()
        real = owner.fetch_chunk

        async def fetch(peer: str, wanted: FetchChunk) -> bytes:
            asked.append(wanted.index)
            if len(asked) > 3:
                await stop.wait()
            return await real(peer, wanted)

        owner.fetch_chunk = fetch  # type: ignore[method-assign]
        (pending,) = node.hear(owner.base())
        while len(asked) < 6:
            await asyncio.sleep(0)
        assert await node.one(owner.append(0)) == Elsewhere(first, staging=True)
        await node.replicas.close()
        assert not pending.done()
        asked.clear()
        owner.fetch_chunk = real  # type: ignore[method-assign]
        await node.reopen()
        assert await node.position() == first
        assert first == Position(LIFE, Generation(E1, 0), length)

        async def count(peer: str, wanted: FetchChunk) -> bytes:
            asked.append(wanted.index)
            return await real(peer, wanted)

        owner.fetch_chunk = count  # type: ignore[method-assign]
        assert await node.one(owner.base()) == Holds(LIFE, owner.generation, 0)
        assert 0 < len(asked) < len(owner.shape.hashes)

    play(story)


def test_a_fence_beats_a_base_on_its_way(play: Any) -> None:
    """A base that was being staged when a newer owner fenced the copy does not become it."""

    async def story(node: Node, owner: Owner) -> None:
        await born(node, owner)
        owner.grow(60, size=30_000)
        owner.fold()
        gate, asked = asyncio.Event(), asyncio.Event()
        real = owner.fetch_chunk

        async def fetch(peer: str, wanted: FetchChunk) -> bytes:
            asked.set()
            await gate.wait()
            return await real(peer, wanted)

        owner.fetch_chunk = fetch  # type: ignore[method-assign]
        (pending,) = node.hear(owner.base())
        await asked.wait()
        before = (await node.fence(E2)).position
        gate.set()
        assert await pending == FencedBy(E2)
        assert (await node.fence(E2)).position == before

    play(story)


def test_a_fold_waits_for_readers(play: Any) -> None:
    """A view holds base and log still; the fold goes on when it is closed."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        view = node.replicas.copy(KEY.id)
        assert view is not None
        assert (view.position.length, view.base, view.log(length)) == (length, IMAGE, owner.log())
        (folding,) = node.hear(owner.fold())
        interrupted = asyncio.Event()
        view.on_interrupt = interrupted.set
        await interrupted.wait()
        assert not folding.done()
        assert node.replicas.copy(KEY.id) is None
        view.close()
        assert await folding == Holds(LIFE, owner.generation, 0)

    play(story)
