"""A node's copies of objects it does not own, on a real disk: what is acked, what survives, whose epochs count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from copies import E1, E2, E3, FRAME, KEY, LIFE, Node, Owner, born

from domicile.node.wire.messages import (
    Append,
    Elsewhere,
    FencedBy,
    Holds,
    Unable,
)
from domicile.placement.records import Epoch, Generation, Position


def test_an_object_is_born_and_followed(play: Any) -> None:
    """A base over nothing asks for the claim; appends extend, repeats are idempotent, a gap changes nothing."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        assert node.claims == [E1]
        owner.grow(2)
        assert await node.one(owner.append(length)) == Holds(LIFE, owner.generation, owner.length)
        assert await node.one(owner.append(0)) == Holds(LIFE, owner.generation, owner.length)
        whole = owner.length
        owner.grow(1)
        before = owner.length
        owner.grow(1)
        assert await node.one(owner.append(before)) == Elsewhere(Position(LIFE, owner.generation, whole))
        answer = await node.fence(E1)
        assert (answer.position, answer.checksum) == (Position(LIFE, owner.generation, whole), owner.at(whole))

    play(story)


def test_a_stranger_s_base_is_refused(play: Any) -> None:
    """A node with neither copy nor stub takes a base only from the claim that stands."""

    async def story(node: Node, owner: Owner) -> None:
        node.stands = False
        owner.grow(1)
        answer = await node.one(owner.birth())
        assert isinstance(answer, Unable)
        assert await node.one(owner.append(0)) == Elsewhere(None)

    play(story)


def test_an_older_epoch_is_refused_after_a_restart_too(play: Any) -> None:
    """A fence is durable before it is answered: the older owner is fenced by it, also by the next process."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        assert (await node.fence(E2)).position == Position(LIFE, owner.generation, length)
        owner.grow(1)
        assert await node.one(owner.append(length)) == FencedBy(E2)
        await node.reopen()
        assert await node.one(owner.append(length)) == FencedBy(E2)
        assert await node.one(owner.birth()) == FencedBy(E2)
        assert (await node.fence(E1)).fenced == E2
        assert await node.one(owner.relabel(length, E3)) == Holds(LIFE, Generation(E3, 0), length)
        assert (await node.fence(E2)).fenced == E3

    play(story)


def test_acked_writes_survive_without_their_files(play: Any, tmp_path: Path) -> None:
    """Field case 15: the journal alone proves what was acked; a torn last record is no record, and writing goes on."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        await node.replicas.checkpoint()
        owner.grow(3)
        assert await node.one(owner.append(length)) == Holds(LIFE, owner.generation, owner.length)
        whole = owner.length
        (log,) = (path for path in (node.root / "replicas" / KEY.id).iterdir() if path.name.isdecimal())
        log.write_bytes(log.read_bytes()[:length])  # never synced: gone
        journal = node.root / "replicas" / "journal"
        at = journal.read_bytes().rfind(b"DJRN")
        with journal.open("r+b") as file:
            file.seek(at + 200)
            file.write(b"torn")
        owner.grow(1)
        await node.reopen()
        assert (await node.fence(E1)).position == Position(LIFE, owner.generation, length)
        assert await node.one(owner.append(length)) == Holds(LIFE, owner.generation, owner.length)
        await node.reopen()
        answer = await node.fence(E1)
        assert (answer.position.length, answer.checksum) == (owner.length, owner.at(owner.length))
        assert whole < owner.length

    play(story)


def test_a_relabel_cuts_exactly_and_keeps_the_checksum(play: Any) -> None:
    """A copy takes the new owner's generation at exactly the laid length; what it had beyond is gone, for good."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        laid = owner.at(length)
        owner.grow(2)
        await node.one(owner.append(length))
        assert await node.one(owner.relabel(length, E2)) == Holds(LIFE, Generation(E2, 0), length)
        answer = await node.fence(E2)
        assert (answer.position.length, answer.checksum, answer.start) == (length, laid, length)
        await node.reopen()
        assert (await node.fence(E2)).position == Position(LIFE, Generation(E2, 0), length)
        assert await node.one(owner.relabel(length, E2)) == Holds(LIFE, Generation(E2, 0), length)

    play(story)


def test_a_short_copy_is_not_relabelled(play: Any) -> None:
    """A copy changes its generation only when it holds all that was laid (model: eager)."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        owner.grow(2)
        message = owner.relabel(owner.length, E2)
        assert await node.one(message) == Elsewhere(Position(LIFE, owner.generation, length))
        first = replace_epoch(owner.append(length), E2)
        assert await node.say(first, message) == [
            Holds(LIFE, owner.generation, owner.length),
            Holds(LIFE, Generation(E2, 0), owner.length),
        ]

    play(story)


def replace_epoch(message: Append, epoch: Epoch) -> Append:
    return Append(
        message.object_id,
        message.incarnation,
        epoch,
        message.generation,
        message.offset,
        message.checksum,
        message.frames,
    )


def test_half_a_transaction_is_no_position(play: Any) -> None:
    """Field case 34: pieces of a transaction are held, and nothing but whole commits is ever told."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        owner.grow(1, size=40_000)
        end = owner.length
        cut = length + 3 * FRAME
        assert await node.one(owner.append(length, cut)) == Holds(LIFE, owner.generation, length)
        assert (await node.fence(E1)).position == Position(LIFE, owner.generation, length)
        await node.reopen()
        assert (await node.fence(E1)).position == Position(LIFE, owner.generation, length)
        assert await node.one(owner.append(cut)) == Holds(LIFE, owner.generation, end)
        assert (await node.fence(E1)).checksum == owner.at(end)

    play(story)


def test_another_history_of_the_same_length_is_no_copy(play: Any, tmp_path: Path) -> None:
    """Field case 29: same generation and length, other bytes: nothing is acked, and a base takes the copy's place."""

    async def story(node: Node, owner: Owner) -> None:
        length = await born(node, owner)
        other = Owner(tmp_path / "other.db")
        other.grow(3)
        other.grow(1)
        assert await node.one(other.append(length)) == Elsewhere(None)
        assert await node.one(other.birth()) == Holds(LIFE, other.generation, 0)
        assert await node.one(other.append(0)) == Holds(LIFE, other.generation, other.length)

    play(story)
