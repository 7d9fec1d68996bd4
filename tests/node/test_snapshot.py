"""Snapshots: what a read at exactly one length of a log shows, beside writers, folds and each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domicile.errors import SqlError, SqlRefused
from domicile.node.disk import SystemDisk
from domicile.node.errors import Corrupt
from domicile.node.sqlite import wal
from domicile.node.sqlite.birth import IMAGE
from domicile.node.sqlite.database import StorageFailed
from domicile.node.sqlite.snapshot import Snapshots


@pytest.fixture(scope="module")
def snapshots() -> Snapshots:
    return Snapshots(SystemDisk(), "m4rk")


def commits(log: bytes) -> list[int]:
    """Every length at which a transaction ends."""
    ends, at = [0], wal.LOG_HEADER
    while at + 4120 <= len(log):
        if log[at + 4 : at + 8] != b"\0\0\0\0":
            ends.append(at + 4120)
        at += 4120
    return ends


def test_every_commit_can_be_read(thing: Any, snapshots: Snapshots) -> None:
    """At each commit's length exactly what was committed then is there."""
    for i in range(20):
        thing.script(f"INSERT INTO t VALUES ({i}, randomblob(3000))")
    log = thing.db.read_log(0, thing.db.length)
    lengths = commits(log)[1:]
    for seen, length in enumerate(lengths):
        snapshot = snapshots.open(str(thing.path), log, length)
        assert snapshot.query("SELECT count(*) AS n FROM t") == [{"n": seen}]
        assert snapshot.query("PRAGMA integrity_check") == [{"integrity_check": "ok"}]
        snapshot.close()


def test_a_snapshot_moves_on_with_the_log(thing: Any, snapshots: Snapshots) -> None:
    """Advanced between two reads, it shows the new rows and a new schema through its prepared statements."""
    thing.script("INSERT INTO t VALUES (1, 'a')")
    snapshot = snapshots.open(str(thing.path), f"{thing.path}-wal", thing.db.length)
    for i in range(2, 30):
        assert snapshot.query("SELECT max(i) AS i FROM t") == [{"i": i - 1}]
        thing.script(f"INSERT INTO t VALUES ({i}, randomblob(5000))")
        assert snapshot.query("SELECT max(i) AS i FROM t") == [{"i": i - 1}]
        snapshot.advance(thing.db.length)
    thing.script("ALTER TABLE t ADD COLUMN c DEFAULT 7")
    snapshot.advance(thing.db.length)
    assert snapshot.query("SELECT c FROM t WHERE i = 1") == [{"c": 7}]
    snapshot.close()


def test_the_next_generation_is_never_shown_stale(thing: Any, snapshots: Snapshots) -> None:
    """The same number of frames after a rotation is another database: nothing cached of the first is shown."""
    seen = []
    for value in ("first", "second"):
        thing.script(f"INSERT OR REPLACE INTO t VALUES (1, '{value}')")
        snapshot = snapshots.open(str(thing.path), f"{thing.path}-wal", thing.db.length)
        seen += snapshot.query("SELECT b FROM t")
        snapshot.close()
        assert thing.db.checkpoint()
    assert seen == [{"b": "first"}, {"b": "second"}]


def test_a_snapshot_writes_nothing(thing: Any, snapshots: Snapshots) -> None:
    """Writes, transactions, other files and the runtime's own tables are refused, as for the object's methods."""
    thing.script("INSERT INTO t VALUES (1, 'a')")
    snapshot = snapshots.open(str(thing.path), f"{thing.path}-wal", thing.db.length)
    for sql in (
        "INSERT INTO t VALUES (2, 'b')",
        "DELETE FROM t",
        "CREATE TABLE u(x)",
        "CREATE TEMP TABLE u(x)",
        "ATTACH 'x' AS x",
        "COMMIT",
        "SELECT * FROM _domicile_meta",
        "PRAGMA journal_mode=wal",
    ):
        with pytest.raises((SqlRefused, SqlError)):
            snapshot.query(sql)
    assert snapshot.query("SELECT b FROM t WHERE i = ?", 1) == [{"b": "a"}]
    assert snapshot.read("SELECT count(*) FROM _domicile_meta") == [(0,)]
    snapshot.close()


def test_sorts_may_spill(thing: Any, snapshots: Snapshots) -> None:
    """Temporary files are not the overlay's: a sort larger than its memory gives the right rows."""
    thing.script(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)"
        " INSERT INTO t SELECT i, hex(randomblob(500)) FROM n"
    )
    snapshot = snapshots.open(str(thing.path), f"{thing.path}-wal", thing.db.length)
    rows = snapshot.query("SELECT i, b FROM t ORDER BY b")
    assert [row["b"] for row in rows] == sorted(row["b"] for row in rows)
    assert len(rows) == 3000
    snapshot.close()


def test_half_a_transaction_is_not_read(thing: Any, snapshots: Snapshots) -> None:
    """Field case 34: a length at which no transaction ends is refused, and so is one that is not there."""
    thing.script("INSERT INTO t VALUES (1, randomblob(50000))")
    length = thing.db.length
    for wrong in (length - 4120, length - 1, length + 4120):
        with pytest.raises(Corrupt):
            snapshots.open(str(thing.path), f"{thing.path}-wal", wrong)
    with pytest.raises(StorageFailed):
        snapshots.open(f"{thing.path}.missing", b"", 0)
    with pytest.raises(Corrupt):
        snapshots.open(b"", b"", 0)


def test_a_birth_image_is_an_empty_object(snapshots: Snapshots) -> None:
    """Position zero of every copy can be read: the internal tables and nothing else."""
    snapshot = snapshots.open(IMAGE, b"", 0)
    assert snapshot.query("SELECT count(*) AS n FROM sqlite_schema WHERE name NOT LIKE '%domicile%'") == [{"n": 0}]
    snapshot.close()


def test_the_owners_locks_survive_a_snapshot_held_with_its_residency(thing: Any, snapshots: Snapshots) -> None:
    """On a base held open while the connection lives a snapshot costs no lock: an outsider stays shut out."""
    thing.script("INSERT INTO t VALUES (1, 'a')")
    held = SystemDisk().open_file(str(thing.path))

    class Kept:
        """The residency's own descriptor: a snapshot's end does not end it."""

        def read(self, offset: int, length: int) -> bytes:
            return held.read(offset, length)

        def close(self) -> None:
            pass

    snapshot = snapshots.open(Kept(), f"{thing.path}-wal", thing.db.length)
    assert snapshot.query("SELECT b FROM t") == [{"b": "a"}]
    snapshot.close()
    code = "import apsw,sys; apsw.Connection(sys.argv[1]).execute('select * from t').fetchall()"
    outsider = subprocess.run(
        [sys.executable, "-c", code, str(thing.path)], capture_output=True, text=True, check=False
    )
    assert "locked" in outsider.stderr.lower()
    assert Path(f"{thing.path}-wal").stat().st_size >= thing.db.length
    thing.script("INSERT INTO t VALUES (2, 'b')")
    held.close()


@settings(max_examples=25)
@given(
    st.lists(
        st.sampled_from(
            [
                "INSERT INTO t(b) VALUES (randomblob(2000))",
                "INSERT INTO t(b) SELECT randomblob(900) FROM t LIMIT 40",
                "DELETE FROM t WHERE i % 3 = 0",
                "UPDATE t SET b = randomblob(300) WHERE i % 2 = 0",
                "CREATE TABLE IF NOT EXISTS u(x)",
                "DROP TABLE IF EXISTS u",
                "CHECKPOINT",
            ]
        ),
        min_size=1,
        max_size=25,
    )
)
def test_a_snapshot_shows_what_the_database_showed(tmp_path_factory: Any, steps: list[str]) -> None:
    """After any history, at the end of each transaction, the snapshot's content is the database's."""
    path = tmp_path_factory.mktemp("s") / "a.db"
    path.write_bytes(IMAGE)
    db = apsw.Connection(str(path))
    length = 0

    def hook(_: apsw.Connection, __: str, frames: int) -> int:
        nonlocal length
        length = wal.length_of(frames)
        return 0

    db.set_wal_hook(hook)
    db.execute("CREATE TABLE t(i INTEGER PRIMARY KEY, b); INSERT INTO t(b) VALUES (1)")
    opener = Snapshots(SystemDisk(), "m4rk")
    for step in steps:
        if step == "CHECKPOINT":
            db.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_TRUNCATE)
            length = 0
        else:
            db.execute(step)
        snapshot = opener.open(path.read_bytes(), f"{path}-wal", length)
        for sql in (
            "SELECT * FROM t ORDER BY i",
            "SELECT name FROM sqlite_schema WHERE name NOT LIKE '\\_%' ESCAPE '\\'",
        ):
            assert [tuple(row.values()) for row in snapshot.query(sql)] == db.execute(sql).fetchall()
        assert snapshot.query("PRAGMA quick_check") == [{"quick_check": "ok"}]
        snapshot.close()
    db.close()
