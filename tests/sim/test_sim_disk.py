"""The disk of the world, and SQLite on it: what survives a kill, what a power cut takes, and what a full disk does."""

from __future__ import annotations

import errno
import random

import apsw
import pytest
from simworld.disk import SimDisk
from simworld.loop import SimLoop
from simworld.process import Process
from simworld.vfs import Mount

SEEDS = range(60)


@pytest.fixture
def machines():
    """Make disks with a VFS each; all are taken down at the end."""
    made = []

    def make(seed):
        disk = SimDisk(random.Random(seed))
        made.append(Mount(disk, random.Random(seed), lambda: 0.0))
        disk.make_dir("/data")
        disk.sync("/data")
        return disk

    yield make
    for mount in made:
        mount.close()


def connect(disk, synchronous="full"):
    db = apsw.Connection("/data/a.db", vfs=disk.vfs)
    db.execute("pragma locking_mode=exclusive; pragma journal_mode=wal").fetchall()
    db.execute(f"pragma synchronous={synchronous}; pragma wal_autocheckpoint=0").fetchall()
    db.execute("create table if not exists t(x)")
    return db


def rows(disk):
    db = apsw.Connection("/data/a.db", vfs=disk.vfs)
    try:
        db.execute("pragma locking_mode=exclusive").fetchall()
        assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
        if not db.execute("select 1 from sqlite_master where name = 't'").fetchall():
            return []
        return [row[0] for row in db.execute("select x from t order by rowid").fetchall()]
    finally:
        db.close()


def test_a_kill_loses_nothing_that_was_written(machines):
    """The page cache outlives a process."""
    disk = machines(1)
    disk.write("/data/f", b"unsynced", sync=False)
    disk.crash(power=False)

    assert disk.read("/data/f") == b"unsynced"
    assert disk.boot_id() == "boot-1"


def test_a_power_cut_keeps_what_was_synced_and_may_take_or_tear_the_rest(machines):
    """Synced bytes stay for every seed; unsynced ones are sometimes there, sometimes gone, sometimes in pieces."""
    found = set()
    for seed in SEEDS:
        disk = machines(seed)
        disk.write("/data/f", b"A" * 2048, sync=True)
        disk.sync("/data")
        disk.write("/data/f", b"B" * 2048, sync=False)
        disk.crash(power=True)
        found.add(disk.read("/data/f"))
        assert disk.boot_id() == "boot-2"

    assert b"A" * 2048 in found
    assert b"B" * 2048 in found
    assert len(found) > 4


def test_replace_leaves_the_old_or_the_new(machines):
    """A synced replace is the new content after a power cut; an unsynced one may be the old, never a mixture."""
    found = set()
    for seed in SEEDS:
        disk = machines(seed)
        disk.replace("/data/f", b"old", sync=True)
        disk.write("/data/f.new", b"new", sync=True)
        disk.rename("/data/f.new", "/data/f")
        disk.crash(power=True)
        found.add(disk.read("/data/f"))
        disk.replace("/data/f", b"last", sync=True)
        disk.crash(power=True)
        assert disk.read("/data/f") == b"last"

    assert found == {b"old", b"new"}


def test_a_new_file_may_vanish_until_its_directory_is_synced(machines):
    """Syncing a file does not make its name durable; syncing the directory does."""
    there = set()
    for seed in SEEDS:
        disk = machines(seed)
        disk.write("/data/f", b"x", sync=True)
        disk.write("/data/g", b"x", sync=True)
        disk.sync("/data")
        disk.write("/data/h", b"x", sync=True)
        disk.crash(power=True)
        assert disk.size("/data/f") == disk.size("/data/g") == 1
        there.add(disk.size("/data/h") is not None)

    assert there == {True, False}


def test_a_full_disk_is_an_error_and_room_helps(machines):
    """ENOSPC is raised where bytes are added, nothing of that write stays, and it ends when there is room again."""
    disk = machines(1)
    disk.write("/data/f", b"x" * 100, sync=True)
    disk.faults.capacity = disk.used + 10

    with pytest.raises(OSError, match="no space") as raised:
        disk.write("/data/g", b"y" * 50, sync=True)

    assert raised.value.errno == errno.ENOSPC
    disk.remove("/data/f")
    disk.write("/data/g", b"y" * 50, sync=True)
    assert disk.read("/data/g") == b"y" * 50


def test_the_dead_change_nothing(machines):
    """What a killed process still does to the disk has no effect: a rename in a `finally` included."""
    disk, loop = machines(1), SimLoop(1)
    process = Process(loop, "node-1")
    disk.write("/data/f", b"kept", sync=True)
    process.alive = False

    def clean_up():
        disk.remove("/data/f")
        disk.write("/data/f", b"changed", sync=True)
        with pytest.raises(FileNotFoundError):
            disk.read("/data/f")

    process.context.copy().run(clean_up)
    loop.end()

    assert disk.read("/data/f") == b"kept"


def test_sqlite_keeps_every_synced_commit_through_power_cuts(machines):
    """WAL, exclusive, synchronous=FULL: whatever the cut tears, committed rows are there and the file is whole."""
    for seed in SEEDS:
        rng, disk = random.Random(seed), machines(seed)
        written = []
        db = connect(disk)
        disk.sync("/data")
        for _ in range(4):
            for _ in range(rng.randint(1, 5)):
                written.append(rng.randbytes(rng.randint(1, 9000)))
                db.execute("insert into t values(?)", (written[-1],))
            if rng.random() < 0.3:
                db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            disk.crash(power=True)
            db.close()
            assert rows(disk) == written
            db = connect(disk)
        db.close()


def test_sqlite_without_syncs_loses_a_tail_and_only_a_tail(machines):
    """synchronous=NORMAL: after a cut the rows are a prefix, and some cut really takes one."""
    lost = 0
    for seed in SEEDS:
        disk = machines(seed)
        db = connect(disk, "normal")
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        disk.sync("/data")
        for n in range(5):
            db.execute("insert into t values(?)", (n,))
        disk.crash(power=True)
        db.close()
        left = rows(disk)
        assert left == list(range(len(left)))
        lost += len(left) < 5

    assert lost > 5


def test_a_crash_at_every_single_disk_operation_leaves_a_prefix(machines):
    """Killed before any one write or sync of three commits, SQLite has the commits that were done, whole."""
    for op in range(1, 40):
        disk, loop = machines(op), SimLoop(op)
        process = Process(loop, "node-1")
        done = []

        def work(disk=disk, done=done):
            db = connect(disk)
            for n in range(3):
                db.execute("insert into t values(?)", (n,))
                done.append(n)
            db.close()

        def die(ops, op=op, disk=disk, process=process):
            if ops == op:
                process.alive = False
                disk.crash(power=True)

        disk.on_op = die
        process.context.copy().run(work)
        loop.end()
        disk.on_op = None
        if process.alive:
            break
        left = rows(disk)
        assert left == list(range(len(left)))
    else:
        pytest.fail("the work never got through: raise the bound")


def test_sqlite_on_a_full_disk_rolls_back_and_goes_on(machines):
    """A commit without room fails as FullError or IOError, the rows before it stay, and later commits work."""
    disk = machines(1)
    db = connect(disk)
    db.execute("insert into t values('kept')")
    disk.faults.capacity = disk.used
    with pytest.raises((apsw.FullError, apsw.IOError)):
        db.execute("insert into t values(randomblob(20000))")
    disk.faults.capacity = None
    db.execute("insert into t values('later')")

    assert [row[0] for row in db.execute("select x from t").fetchall()] == ["kept", "later"]
    db.close()


def test_the_exclusive_lock_keeps_others_out(machines):
    """While a connection holds the file exclusively, another one is told that it is busy."""
    disk = machines(1)
    db = connect(disk)
    db.execute("insert into t values(1)")
    other = apsw.Connection("/data/a.db", vfs=disk.vfs)
    with pytest.raises(apsw.BusyError):
        other.execute("select * from t").fetchall()
    db.close()
    other.execute("pragma locking_mode=exclusive").fetchall()

    assert other.execute("select * from t").fetchall() == [(1,)]
    other.close()


def test_a_dead_process_goes_on_with_a_ghost(machines):
    """A connection that outlives its process writes where nobody looks."""
    disk = machines(1)
    db = connect(disk)
    db.execute("insert into t values(1)")
    disk.crash(power=False)
    db.execute("insert into t values(2)")
    db.close()

    assert rows(disk) == [1]


def test_wal_bytes_replay(machines):
    """SQLite's randomness is the seed's: the same work leaves the same log, salts included."""
    logs = []
    for seed in (5, 5, 6):
        disk = machines(seed)
        db = connect(disk)
        db.execute("insert into t values(random())")
        logs.append(disk.read("/data/a.db-wal"))
        disk.crash(power=False)
        db.close()

    assert logs[0] == logs[1] != logs[2]
