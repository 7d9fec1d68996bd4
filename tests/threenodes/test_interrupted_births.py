"""Births that fail once, while no member can be reached: nothing was written, so nobody has to be asked about it."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest
from counting import Counter

from domicile.errors import NotServing
from domicile.node.errors import BlobUnavailable, PeerGone
from domicile.placement.store import StoreUnavailable

QUORUM_MS = 15_000  # is what a read quorum is waited for; calls have longer
SOON_SECS = 10.0


class Unreachable:
    """The other nodes, for this one: their rows stand, and nobody answers."""

    def __init__(self, one) -> None:
        self._peers = one.hood.peers
        self._were = (self._peers.fence, self._peers.tell)
        self._peers.fence, self._peers.tell = self.fence, self.tell

    async def fence(self, *_):
        raise PeerGone("nobody answers", sent=False)

    def tell(self, address, message, copy_id, heard):
        asyncio.get_running_loop().call_soon(partial(heard, PeerGone("nobody answers", sent=False)))

    def end(self) -> None:
        self._peers.fence, self._peers.tell = self._were


async def is_born_soon(c, unreachable: Unreachable, name: str) -> None:
    """Without an incident; and what was answered is there when another node takes over."""
    home, began = c.nodes[0], time.monotonic()
    assert await home.call("Counter", name, "increment") == 1
    assert time.monotonic() - began < SOON_SECS
    assert await home.node.incidents() == []
    assert home.home_of("Counter", name)
    unreachable.end()
    await home.crash()
    assert await c.nodes[0].call("Counter", name, "increment") == 2
    assert await c.nodes[0].node.incidents() == []


def test_a_birth_whose_bucket_did_not_answer_is_one_the_next_time(cluster):
    """The second claim is over the first's row, and asks no member."""

    async def scenario(c):
        home, get = c.nodes[0], c.blobs.get
        unreachable = Unreachable(home)

        async def away(*_):
            raise BlobUnavailable("the store is away")

        c.blobs.get = away
        with pytest.raises(NotServing, match="does not answer"):
            await home.call("Counter", "a", "increment", secs=1)
        c.blobs.get = get
        await is_born_soon(c, unreachable, "a")

    cluster(scenario, Counter, object_takeover_wait_ms=QUORUM_MS)


def test_a_claim_that_lands_late_is_the_birth_it_was_meant_to_be(cluster):
    """Its answer is lost, reading shows nothing yet, it lands, and the second try meets it."""

    async def scenario(c):
        home, write = c.nodes[0], c.store.write
        await home.call("Counter", "registered", "increment")
        unreachable = Unreachable(home)
        late = []

        async def lost_once(conditions, mutations, *more):
            if any("/leases/" in condition.key for condition in conditions):
                late.append((conditions, mutations, *more))
                if len(late) == 1:
                    raise StoreUnavailable("no answer", maybe=True)
                c.store.write = write
                await write(*late[0])
            return await write(conditions, mutations, *more)

        c.store.write = lost_once
        await is_born_soon(c, unreachable, "a")
        assert len(late) == 2

    cluster(scenario, Counter, object_takeover_wait_ms=QUORUM_MS)
