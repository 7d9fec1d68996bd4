"""The etcd store on three members: leaders that die or freeze, members that are restarted one by one, no leader at all.

While a quorum lives, reads and writes go on; what is unknown is said to be; nothing is lost and nothing made up.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest
from etcd_servers import Etcd, until

from domicile.placement import etcd_link
from domicile.placement.etcd import EtcdStore
from domicile.placement.etcd_link import EtcdConfig
from domicile.placement.store import At, Committed, Conflict, Event, Put, StoreUnavailable

pytestmark = pytest.mark.anyio
ELECTION_SECS = 30.0  # far beyond what one takes: machines are busy
SLACK_SECS = 10.0  # what hangs, hangs for ever


@pytest.fixture
async def store(three_etcds: Etcd, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EtcdStore]:
    """Connected to the leader first."""
    monkeypatch.setattr(etcd_link, "REQUEST_SECS", 1.5)
    leader = three_etcds.leader().endpoint
    store = EtcdStore(
        EtcdConfig((leader, *(e for e in three_etcds.endpoints if e != leader))), time.monotonic, asyncio.sleep
    )
    yield store
    await store.close()


class Counter:
    """Counts up in one row, each write conditioned on the one before; keeps every version that was committed."""

    def __init__(self, store: EtcdStore) -> None:
        self.store, self.count, self.version = store, 0, 0
        self.versions: list[int] = []
        self.unknown = 0

    async def count_up(self) -> bool:
        """One attempt, proven by reading when its answer was lost. False: not known to have been done."""
        try:
            outcome = await self.store.write([At("/c", self.version)], [Put("/c", b"%d" % (self.count + 1))])
        except StoreUnavailable as error:
            self.unknown += error.maybe
            return False
        if isinstance(outcome, Committed):
            self.count, self.version = self.count + 1, outcome.version
        else:
            row = outcome.current["/c"]
            # Only a write of ours whose answer was lost can be there.
            assert row is not None
            assert int(row.value) == self.count + 1
            self.count, self.version = self.count + 1, row.version
        self.versions.append(self.version)
        return True

    async def until_it_counts(self, times: int = 3) -> None:
        async with asyncio.timeout(ELECTION_SECS):
            for _ in range(times):
                while not await self.count_up():
                    await asyncio.sleep(0)


async def test_a_killed_leader_is_survived_and_welcomed_back(three_etcds: Etcd, store: EtcdStore) -> None:
    """Every count once; the member that comes back is used again when the others go."""
    counter = Counter(store)
    await counter.until_it_counts()
    dead = three_etcds.leader()
    dead.kill()
    await counter.until_it_counts()
    assert int((await store.read(["/c"]))["/c"].value) == counter.count
    three_etcds.restart(dead)
    await asyncio.to_thread(until, three_etcds.healthy)
    for member in three_etcds.members:
        if member is not dead:
            member.kill()
            break
    await counter.until_it_counts()
    assert int((await store.read(["/c"]))["/c"].value) == counter.count


async def test_a_frozen_leader_hangs_nobody(three_etcds: Etcd, store: EtcdStore) -> None:
    """Connections stay open and nothing comes: reads go elsewhere, writes say maybe in time, thawing does no harm."""
    counter = Counter(store)
    await counter.until_it_counts()
    frozen = three_etcds.leader()
    frozen.freeze()
    began = time.monotonic()
    await counter.count_up()
    assert time.monotonic() - began < etcd_link.REQUEST_SECS + SLACK_SECS
    await counter.until_it_counts()
    assert int((await store.read(["/c"]))["/c"].value) == counter.count
    frozen.thaw()
    await counter.until_it_counts()
    assert counter.versions == sorted(set(counter.versions))


async def test_members_restarted_one_by_one_leave_no_gap_in_a_watch(three_etcds: Etcd, store: EtcdStore) -> None:
    """A rolling restart under writes: the watcher sees every version that was written, in order, once."""
    counter = Counter(store)
    await counter.until_it_counts(1)
    seen: list[int] = [counter.version]

    async def watch() -> None:
        async for event in store.watch("/c", counter.versions[0]):
            assert isinstance(event, Event)
            seen.append(event.version)

    watching = asyncio.ensure_future(watch())
    for member in three_etcds.members:
        await counter.until_it_counts()
        member.kill()
        await counter.until_it_counts()
        three_etcds.restart(member)
        await asyncio.to_thread(until, three_etcds.healthy)
    await counter.until_it_counts()
    async with asyncio.timeout(ELECTION_SECS):
        while seen[-1] < counter.version:
            await asyncio.sleep(0)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    assert seen == counter.versions


async def test_without_a_quorum_nothing_is_written_and_nothing_old_is_read(three_etcds: Etcd, store: EtcdStore) -> None:
    """A member alone answers neither; with a second one back everything goes on."""
    counter = Counter(store)
    await counter.until_it_counts()
    one, two, _alone = three_etcds.members
    one.kill()
    two.kill()
    outcomes = await asyncio.gather(
        store.read(["/c"]), store.write([At("/c", 0)], [Put("/c", b"stale")]), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable, StoreUnavailable]
    three_etcds.restart(one)
    await counter.until_it_counts()
    assert isinstance(await store.write([At("/c", 0)], [Put("/c", b"stale")]), Conflict)


async def test_a_leaders_restart_ends_no_grant_that_is_kept(three_etcds: Etcd, store: EtcdStore) -> None:
    """Field case 48: a change of leader starts grants anew, which is later than promised and never earlier."""
    grant = await store.grant(2)
    assert isinstance(await store.write([], [Put("/n/1", b"")], grant), Committed)
    for _ in range(2):
        leader = three_etcds.leader()
        leader.kill()
        async with asyncio.timeout(ELECTION_SECS):
            while True:
                try:
                    await store.keep(grant)
                    break
                except StoreUnavailable:
                    continue
        assert "/n/1" in await store.read(["/n/1"])
        three_etcds.restart(leader)
        await asyncio.to_thread(until, three_etcds.healthy)
    await store.revoke(grant)
    assert await store.read(["/n/1"]) == {}
