"""What the embedded store promises beyond the interface: one opener, one sync for many, crashes, full disks."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domicile.placement.change_log import Change, ChangeLog
from domicile.placement.embedded import EmbeddedStore
from domicile.placement.ledger import Ledger
from domicile.placement.store import (
    At,
    Committed,
    Conflict,
    Delete,
    GrantGone,
    Mutation,
    Put,
    Record,
    StoreInUse,
    StoreUnavailable,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def opened() -> AsyncIterator[list[EmbeddedStore]]:
    stores: list[EmbeddedStore] = []
    yield stores
    for store in stores:
        await store.close()


def open_store(path: Path, opened: list[EmbeddedStore], **options: Any) -> EmbeddedStore:
    store = EmbeddedStore(str(path / "p.db"), lambda: 0.0, **options)
    opened.append(store)
    return store


async def test_opening_adds_a_thousand_and_drops_the_grants_of_earlier_runs(
    tmp_path: Path, opened: list[EmbeddedStore]
) -> None:
    """Versions a crash took back are not given out again; a dead node's row is gone with the next start."""
    store = open_store(tmp_path, opened)
    grant = await store.grant(1e9)
    await store.write([], [Put("/nodes/n1", b"")], grant)
    last = await store.write([], [Put("/leases/x", b"")])
    assert isinstance(last, Committed)
    await store.close()
    again = open_store(tmp_path, opened)
    page = await again.scan("/")
    assert [record.key for record in page.records] == ["/leases/x"]
    assert page.version == last.version + 1_000
    with pytest.raises(GrantGone):
        await again.keep(grant)
    assert (await again.grant(5)) != grant


async def test_a_second_opener_is_refused_by_name(tmp_path: Path, opened: list[EmbeddedStore]) -> None:
    """In this process and in another; the first goes on undisturbed, and afterwards the file is free."""
    store = open_store(tmp_path, opened)
    with pytest.raises(StoreInUse, match=r"p\.db is open elsewhere"):
        open_store(tmp_path, opened)
    code = (
        "import sys, time; from domicile.placement.embedded import EmbeddedStore as E\n"
        "try: E(sys.argv[1], time.monotonic)\n"
        "except Exception as error: print(type(error).__name__)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "p.db")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "StoreInUse\n"
    assert isinstance(await store.write([], [Put("/a", b"")]), Committed)
    await store.close()
    assert await open_store(tmp_path, opened).read(["/a"]) != {}


async def test_what_was_answered_survives_a_kill(tmp_path: Path, opened: list[EmbeddedStore]) -> None:
    """A process killed amid writes: every write it was told of is there, with its version."""
    code = (
        "import asyncio, sys, time; from domicile.placement.embedded import EmbeddedStore\n"
        "from domicile.placement.store import Put\n"
        "async def main():\n"
        "    store = EmbeddedStore(sys.argv[1], time.monotonic)\n"
        "    for n in range(1000000):\n"
        "        done = await store.write([], [Put(f'/{n % 50}', b'%d' % n)])\n"
        "        print(n, done.version, flush=True)\n"
        "asyncio.run(main())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "p.db")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        told = [tuple(map(int, process.stdout.readline().split())) for _ in range(120)]
        os.kill(process.pid, signal.SIGKILL)
        told += [(int(line.split()[0]), int(line.split()[1])) for line in process.stdout if line.count(" ") == 1]
    store = open_store(tmp_path, opened)
    newest = {n % 50: (n, version) for n, version in told}
    found = await store.read([f"/{n}" for n in newest])
    for key, (n, version) in newest.items():
        record = found[f"/{key}"]
        assert (record.version, int(record.value)) == (version, n) or record.version > version


async def test_any_loop_of_the_process_may_use_it(tmp_path: Path, opened: list[EmbeddedStore]) -> None:
    """Heartbeats run on a loop of their own; watchers on one loop see writes made on another."""
    store = open_store(tmp_path, opened)
    start = (await store.scan("")).version
    watching = asyncio.ensure_future(anext(store.watch("/", start)))
    await asyncio.sleep(0)

    def elsewhere() -> int:
        outcome = asyncio.run(store.write([], [Put("/from-another-loop", b"")]))
        assert isinstance(outcome, Committed)
        return outcome.version

    version = await asyncio.to_thread(elsewhere)
    assert (await watching).version == version


class CountingVfs(apsw.VFS):
    """Counts the syncs of the WAL, and fails writes or syncs on demand."""

    names = count()

    def __init__(self) -> None:
        self.name = f"counting-{next(self.names)}"
        self.syncs = 0
        self.fail_writes: Exception | None = None
        self.fail_syncs: Exception | None = None
        self.writes_left = 0
        self.syncing: Callable[[], object] = lambda: None
        super().__init__(self.name, "")

    def xOpen(self, name: Any, flags: Any) -> Any:
        if flags[0] & apsw.SQLITE_OPEN_WAL:
            return WalFile(self, name, flags)
        return super().xOpen(name, flags)


class WalFile(apsw.VFSFile):
    def __init__(self, vfs: CountingVfs, name: Any, flags: Any) -> None:
        self.vfs = vfs
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        if self.vfs.fail_writes is not None:
            if self.vfs.writes_left == 0:
                raise self.vfs.fail_writes
            self.vfs.writes_left -= 1
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self.vfs.syncs += 1
        self.vfs.syncing()
        if self.vfs.fail_syncs is not None:
            raise self.vfs.fail_syncs
        super().xSync(flags)


@pytest.fixture
def vfs() -> Iterator[CountingVfs]:
    vfs = CountingVfs()
    yield vfs
    vfs.unregister()


async def test_a_lone_write_is_one_sync_and_waiting_writes_share_one(
    tmp_path: Path, opened: list[EmbeddedStore], vfs: CountingVfs
) -> None:
    """Fifty writes that wait together cost a few syncs, in order, each seeing those before it."""
    store = open_store(tmp_path, opened, vfs=vfs.name)
    await store.write([], [Put("/n", b"0")])
    before = vfs.syncs
    for n in range(5):
        await store.write([], [Put("/n", b"%d" % n)])
    assert vfs.syncs - before == 5
    before = vfs.syncs
    outcomes = await asyncio.gather(*(store.write([At(f"/{n // 2}", 0)], [Put(f"/{n // 2}", b"")]) for n in range(100)))
    assert vfs.syncs - before <= 10
    assert [isinstance(outcome, Committed) for outcome in outcomes] == [True, False] * 50
    versions = [outcome.version for outcome in outcomes if isinstance(outcome, Committed)]
    assert versions == sorted(set(versions))
    before = vfs.syncs
    assert isinstance(await store.write([At("/n", 0)], [Put("/n", b"")]), Conflict)
    await store.read(["/n"])
    await store.scan("/")
    assert vfs.syncs == before


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("writes_left", [0, 1, 2])
async def test_a_full_disk_fails_writes_for_certain_and_reads_go_on(
    tmp_path: Path, opened: list[EmbeddedStore], vfs: CountingVfs, inline: bool, writes_left: int
) -> None:
    """`maybe` is False: nothing was written, no watcher is told, and with space again the store goes on."""
    store = open_store(tmp_path, opened, vfs=vfs.name, inline=inline)
    first = await store.write([], [Put("/a", b"1")])
    assert isinstance(first, Committed)
    vfs.fail_writes, vfs.writes_left = apsw.FullError("no space"), writes_left
    with pytest.raises(StoreUnavailable) as full:
        await store.write([At("/a", first.version)], [Put("/a", b"2"), Put("/b", bytes(9000))])
    assert not full.value.maybe
    assert (await store.scan("/")).version == first.version
    assert {key: record.value for key, record in (await store.read(["/a", "/b"])).items()} == {"/a": b"1"}
    vfs.fail_writes = None
    second = await store.write([At("/a", first.version)], [Put("/a", b"3")])
    assert isinstance(second, Committed)
    assert (await anext(store.watch("/", first.version))).version == second.version
    await store.close()
    again = open_store(tmp_path, opened, vfs=vfs.name)
    assert (await again.read(["/a"]))["/a"].value == b"3"


async def test_a_disk_full_in_the_middle_of_a_transaction_is_rolled_back(
    tmp_path: Path, opened: list[EmbeddedStore], vfs: CountingVfs
) -> None:
    """A write larger than the cache fails before its commit, and leaves no transaction open behind it."""
    store = open_store(tmp_path, opened, vfs=vfs.name)
    vfs.fail_writes = apsw.FullError("no space")
    with pytest.raises(StoreUnavailable) as full:
        await store.write([], [Put(f"/{n}", bytes(900_000)) for n in range(12)])
    assert not full.value.maybe
    vfs.fail_writes = None
    assert (await store.scan("/")).records == ()
    assert isinstance(await store.write([], [Put("/a", b"")]), Committed)


def test_a_grant_revoked_in_a_transaction_is_gone_for_the_rest_of_it() -> None:
    """Writes that share a sync see each other's grants too."""
    ledger = Ledger(":memory:", lambda: 0.0, None, 100)
    grant = ledger.grant(100)
    results = ledger.transact([lambda: ledger.revoke(grant), lambda: ledger.write([], [Put("/a", b"")], grant)])
    assert isinstance(results[1], GrantGone)
    assert ledger.read(["/a"]) == {}
    ledger.close()


@pytest.mark.parametrize("error", [apsw.IOError("sync"), OSError(errno.EIO, "sync")])
async def test_a_failed_sync_is_a_maybe_and_the_end_of_this_opening(
    tmp_path: Path, opened: list[EmbeddedStore], vfs: CountingVfs, error: Exception
) -> None:
    """Nobody knows whether it lasts: the writer is told so, and nothing more is answered until a new start reads."""
    store = open_store(tmp_path, opened, vfs=vfs.name)
    await store.write([], [Put("/a", b"1")])
    vfs.fail_syncs = error
    with pytest.raises(StoreUnavailable) as failed:
        await store.write([], [Put("/a", b"2")])
    assert failed.value.maybe
    vfs.fail_syncs = None
    with pytest.raises(StoreUnavailable, match="out of use"):
        await store.read(["/a"])
    await store.close()
    again = open_store(tmp_path, opened, vfs=vfs.name)
    assert (await again.read(["/a"]))["/a"].value in (b"1", b"2")
    assert isinstance(await again.write([], [Put("/a", b"3")]), Committed)


async def test_a_file_that_is_no_store_is_refused(tmp_path: Path, opened: list[EmbeddedStore]) -> None:
    """Garbage, a missing directory and a newer format are errors of the store, and the file is left alone."""
    (tmp_path / "p.db").write_bytes(b"this is not a database, not at all" * 100)
    with pytest.raises(StoreUnavailable):
        open_store(tmp_path, opened)
    assert (tmp_path / "p.db").read_bytes().startswith(b"this is not")
    with pytest.raises(StoreUnavailable):
        open_store(tmp_path / "nowhere", opened)
    newer = apsw.Connection(str(tmp_path / "newer.db"))
    newer.execute("PRAGMA user_version=99")
    newer.close()
    with pytest.raises(StoreUnavailable, match="format 99"):
        EmbeddedStore(str(tmp_path / "newer.db"), lambda: 0.0)


async def test_a_caller_that_goes_away_disturbs_nobody(tmp_path: Path, opened: list[EmbeddedStore]) -> None:
    """A cancelled write happens or not; the others in its batch are answered."""
    store = open_store(tmp_path, opened)
    tasks = [asyncio.ensure_future(store.write([], [Put(f"/{n}", b"")])) for n in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, Committed) for outcome in outcomes[1::2])
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[::2])


async def test_closing_answers_what_waits(tmp_path: Path, opened: list[EmbeddedStore]) -> None:
    """Writes queued before the close are committed; none hangs."""
    store = open_store(tmp_path, opened)
    writes = [asyncio.ensure_future(store.write([], [Put(f"/{n}", b"")])) for n in range(50)]
    await asyncio.sleep(0)
    await store.close()
    assert all(isinstance(outcome, Committed) for outcome in await asyncio.gather(*writes))


KEYS = st.sampled_from(["/a", "/a/1", "/a/2", "/a/é", "/b", "/c"])
MUTATIONS: st.SearchStrategy[list[Mutation]] = st.lists(
    st.one_of(st.builds(Put, KEYS, st.binary(max_size=3)), st.builds(Delete, KEYS)),
    min_size=1,
    max_size=4,
    unique_by=lambda mutation: mutation.key,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(MUTATIONS, min_size=1, max_size=12), st.integers(0, 11), st.integers(1, 3))
def test_scans_and_watches_agree_with_a_map(writes: list[list[Mutation]], cut: int, limit: int) -> None:
    """A scan begun at any point shows that point, and replaying a watch from it gives the present."""
    asyncio.run(scans_and_watches(writes, min(cut, len(writes) - 1), limit))


async def scans_and_watches(writes: list[list[Mutation]], cut: int, limit: int) -> None:
    store = EmbeddedStore(":memory:", lambda: 0.0, inline=True)
    model: dict[str, bytes] = {}
    for mutations in writes[: cut + 1]:
        await store.write([], mutations)
        apply(model, mutations)
    then = dict(model)
    page = await store.scan("/a", limit)
    seen = {record.key: record.value for record in page.records}
    version = page.version
    for mutations in writes[cut + 1 :]:
        await store.write([], mutations)
        apply(model, mutations)
        if page.token:
            page = await store.scan("/a", limit, page.token)
            seen |= {record.key: record.value for record in page.records}
    while page.token:
        page = await store.scan("/a", limit, page.token)
        seen |= {record.key: record.value for record in page.records}
    assert seen == {key: value for key, value in then.items() if key.startswith("/a")}
    await store.write([], [Put("/end", b"")])
    async for event in store.watch("/", version):
        if event.key == "/end":  # type: ignore[union-attr]
            break
        if event.record is None:  # type: ignore[union-attr]
            then.pop(event.key)  # type: ignore[union-attr]
        else:
            then[event.key] = event.record.value  # type: ignore[union-attr]
    assert then == model
    await store.close()


def apply(model: dict[str, bytes], mutations: list[Mutation]) -> None:
    for mutation in mutations:
        if isinstance(mutation, Put):
            model[mutation.key] = mutation.value
        else:
            model.pop(mutation.key, None)


def test_the_change_log_is_bounded_by_bytes_too() -> None:
    """Large values push the past out before their number does, and readers are told."""
    log = ChangeLog(0, changes_max=1_000, bytes_max=10_000)
    for version in range(1, 51):
        log.append([Change("/k", version, None, Record("/k", bytes(900), version, 1))], version)
    assert log.position(0) is None
    assert log.read(0) is None
    assert log.undone(0, "/") is None
    assert log.position(50) is not None
    kept = [version for version in range(51) if log.position(version) is not None]
    assert 4 <= len(kept) <= 12
    assert log.position(51) is None


async def test_reads_do_not_pay_for_the_sync_of_writes_they_wait_with(
    tmp_path: Path, opened: list[EmbeddedStore], vfs: CountingVfs
) -> None:
    """Of what is taken together, reads are answered before the writes are synced."""
    store = open_store(tmp_path, opened, vfs=vfs.name)
    entered, go_on = threading.Event(), threading.Event()
    vfs.syncing = lambda: (entered.set(), go_on.wait(10))
    first = asyncio.ensure_future(store.write([], [Put("/a", b"1")]))
    await asyncio.to_thread(entered.wait, 10)
    entered.clear()
    held = threading.Event()
    second = asyncio.ensure_future(store.write([], [Put("/a", b"2")]))
    read = asyncio.ensure_future(store.read(["/a"]))
    await asyncio.sleep(0)
    vfs.syncing = lambda: (entered.set(), held.wait(10))
    go_on.set()
    await first
    assert (await read)["/a"].value == b"1"
    assert not second.done()
    held.set()
    await second


async def test_a_fault_of_ours_leaves_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that dies of a bug answers what it had and what still waits, and is reported."""
    reported: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_value))
    others = set(threading.enumerate())
    store = EmbeddedStore(str(tmp_path / "p.db"), lambda: 1 / 0)
    (thread,) = set(threading.enumerate()) - others
    with pytest.raises(StoreUnavailable):
        await store.grant(5)
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.read(["/a"])
    thread.join(10)
    assert [type(error) for error in reported] == [ZeroDivisionError]
