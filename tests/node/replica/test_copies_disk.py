"""Copies on a disk that is full, behind a journal that is small, synced once for many."""

from __future__ import annotations

from typing import Any

import pytest
from copies import E1, LIFE, Node, Owner, born

from domicile.node.log import BaseShape
from domicile.node.sqlite.checksum import checksum
from domicile.node.wire.messages import (
    Append,
    Holds,
    NewBase,
    Unable,
)
from domicile.placement.records import ObjectKey


def test_a_full_disk_is_said_and_survived(play: Any) -> None:
    """Field case 41: a node without space says so, keeps what it acked, and goes on by itself when there is space."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        owner.grow(1)
        node.disk.full = True
        assert isinstance(await node.one(owner.append(length)), Unable)
        assert (await node.fence(E1)).position.length == length
        with pytest.raises(OSError, match="no space"):
            await node.replicas.checkpoint()
        assert not node.replicas.healthy
        node.disk.full = False
        assert await node.one(owner.append(length)) == Holds(LIFE, owner.generation, owner.length)
        await node.replicas.checkpoint()
        assert node.replicas.healthy
        await node.reopen()
        assert (await node.fence(E1)).checksum == owner.at(owner.length)

    play(story)


def test_more_than_the_journal_passes_through_it(play: Any) -> None:
    """The ring is used again and again: each lap behind synced files, and all of it is there after a restart."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        for _ in range(50):
            owner.grow(1, size=60_000)
            assert await node.one(owner.append(length)) == Holds(LIFE, owner.generation, owner.length)
            length = owner.length
        assert node.replicas.checkpoints.passes >= 3
        await node.reopen()
        answer = await node.fence(E1)
        assert (answer.position.length, answer.checksum) == (length, owner.at(length))

    play(story)


def test_a_transaction_larger_than_the_journal_is_taken(play: Any) -> None:
    """Frames too large for a record are synced in their file and named by one."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        owner.grow(1, size=3_000_000)
        end = owner.length
        owner.grow(1)
        answers = await node.say(owner.append(length, end), owner.append(end))
        assert answers == [Holds(LIFE, owner.generation, end), Holds(LIFE, owner.generation, owner.length)]
        await node.reopen()
        assert (await node.fence(E1)).checksum == owner.at(owner.length)

    play(story)


def test_everything_that_arrived_together_is_synced_once(play: Any) -> None:
    """Two hundred objects written at once cost one sync, not two hundred."""

    async def story(node: Node, owner: Owner) -> None:
        node = Node(node.root / "roomy", owner)
        node.journal_bytes = 16 << 20
        await node.open()
        owner.grow(1)
        objects = [ObjectKey("acme", "Room", f"r{i}").id for i in range(200)]
        frames = owner.log()

        def born_as(object_id: str) -> NewBase:
            at = checksum(BaseShape().seed(object_id, LIFE), b"")
            return NewBase(bytes.fromhex(object_id), LIFE, E1, owner.generation, 0, at, (), 0)

        def append_to(object_id: str) -> Append:
            at = checksum(BaseShape().seed(object_id, LIFE), b"")
            return Append(bytes.fromhex(object_id), LIFE, E1, owner.generation, 0, at, frames)

        for message in (born_as, append_to):
            before = node.replicas.syncs
            answers = await node.say(*map(message, objects))
            assert node.replicas.syncs - before == 1
        assert set(answers) == {Holds(LIFE, owner.generation, len(frames))}
        await node.replicas.close()

    play(story)
