"""The connection of a residency: what is committed, read, folded, refused and closed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domicile.errors import SqlError
from domicile.node.errors import Corrupt, Ended
from domicile.node.sqlite.birth import IMAGE
from domicile.node.sqlite.database import FRAME, WAL_HEADER, Database
from domicile.node.sqlite.temp_vfs import TempVfs

_LONG = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400000000) SELECT count(*) FROM n"


def committed_length(wal: bytes) -> int:
    """Where SQLite's own chain of salts and checksums ends, at its last commit frame."""
    if len(wal) < WAL_HEADER:
        return 0
    endian = "big" if wal[3] & 1 else "little"

    def fold(sums: tuple[int, int], data: bytes) -> tuple[int, int]:
        one, two = sums
        for at in range(0, len(data), 8):
            one = (one + int.from_bytes(data[at : at + 4], endian) + two) & 0xFFFFFFFF
            two = (two + int.from_bytes(data[at + 4 : at + 8], endian) + one) & 0xFFFFFFFF
        return one, two

    sums, last = fold((0, 0), wal[:24]), 0
    for at in range(WAL_HEADER, len(wal) - FRAME + 1, FRAME):
        header = wal[at : at + 24]
        sums = fold(fold(sums, header[:8]), wal[at + 24 : at + FRAME])
        told = (int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big"))
        if header[8:16] != wal[16:24] or sums != told:
            break
        if any(header[4:8]):
            last = at + FRAME
    return last


def test_a_new_object_has_no_log(opened: Callable[..., Any]) -> None:
    """Position zero is the image and no log."""
    one = opened()
    assert one.db.length == 0
    assert one.db.base_size() == len(IMAGE)
    assert one.db.read_base(0, 1 << 20) == IMAGE


def test_length_is_the_committed_log(thing: Any) -> None:
    """`length` counts what is committed, and `read_log` gives those bytes."""
    before = thing.db.length
    thing.script("INSERT INTO t VALUES (1, 'x')")
    assert thing.db.length > before
    log = thing.path.with_name(thing.path.name + "-wal").read_bytes()
    assert thing.db.read_log(0, thing.db.length) == log[: thing.db.length]
    assert thing.db.length == committed_length(log)


step = st.lists(
    st.sampled_from(["insert", "spill", "fail", "nothing", "delete", "big then fail", "lose"]), min_size=1, max_size=4
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=st.lists(step, min_size=1, max_size=4))
def test_length_follows_the_commit_frames_whatever_groups_do(
    opened: Callable[..., Any], groups: list[list[str]]
) -> None:
    """After any sequence of groups `length` is what a walk over the WAL's commit frames gives, and so at reopening."""
    one = opened()
    one.script("CREATE TABLE t(i INTEGER PRIMARY KEY, b)")

    def method(kind: str) -> Callable[[], Any]:
        def run() -> int:
            if kind == "insert":
                return one.sql.exec("INSERT INTO t(b) VALUES (randomblob(50))")
            if kind == "delete":
                return one.sql.exec("DELETE FROM t WHERE i % 2")
            if kind == "nothing":
                return one.sql.exec("UPDATE t SET b = 1 WHERE i < 0")
            if kind == "lose":
                return one.sql.exec("INSERT OR ROLLBACK INTO t SELECT 1, 'x' UNION ALL SELECT 1, 'x'")
            raise RuntimeError(kind)

        def spilling() -> int:  # past the page cache: frames reach the file before the commit
            one.sql.exec(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300)"
                " INSERT INTO t(b) SELECT randomblob(3000) FROM n"
            )
            if kind != "spill":
                raise RuntimeError(kind)
            return 0

        return spilling if kind in ("spill", "big then fail") else run

    wal = one.path.with_name(one.path.name + "-wal")
    for group in groups:
        one.group(*(method(kind) for kind in group))
        assert one.db.length == committed_length(wal.read_bytes())
    again = one.reopened()
    assert again.rows("PRAGMA integrity_check") == [("ok",)]
    again.db.close()


def test_a_log_that_was_not_wholly_recovered_is_corrupt(thing: Any) -> None:
    """SQLite never complains about a damaged log; opening it does."""
    thing.script("INSERT INTO t VALUES (1, 'x')")
    laid = thing.db.length
    thing.db.close()
    wal = thing.path.with_name(thing.path.name + "-wal")
    damaged = bytearray(wal.read_bytes())
    damaged[WAL_HEADER + 24 + 100] ^= 1
    wal.write_bytes(damaged)
    with pytest.raises(Corrupt, match="recovered"):
        Database.open(str(thing.path), vfs=None, bytes_max=1 << 20, laid=laid, mark="m")
    assert wal.read_bytes() == damaged


def test_a_file_that_is_no_database_is_corrupt(tmp_path: Path) -> None:
    """Bytes that are no SQLite file are named, not served."""
    path = tmp_path / "x.db"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(Corrupt, match=r"x\.db"):
        Database.open(str(path), vfs=None, bytes_max=1 << 20, laid=0, mark="m")


def test_closing_and_reopening_goes_on_in_the_same_log(thing: Any) -> None:
    """Closing leaves base and log as they are; the next commit follows the last."""
    thing.script("INSERT INTO t VALUES (1, 'x')")
    log = thing.db.read_log(0, thing.db.length)
    again = thing.reopened()
    assert again.path.read_bytes() == IMAGE
    again.script("INSERT INTO t VALUES (2, 'y')")
    assert again.db.read_log(0, len(log)) == log
    assert again.db.length > len(log)
    again.db.close()


def test_a_checkpoint_folds_all_and_empties_the_log(thing: Any) -> None:
    """After a checkpoint the base holds everything, and the log starts again from nothing."""
    thing.script("INSERT INTO t VALUES (1, zeroblob(50000))")
    wal = thing.path.with_name(thing.path.name + "-wal")
    assert thing.db.checkpoint()
    assert thing.db.length == 0
    assert wal.stat().st_size == 0
    base = thing.path.stat().st_size
    assert thing.db.base_size() == base > len(IMAGE)
    assert len(thing.db.read_base(0, 1 << 30)) == base
    assert len(thing.db.read_base(base - 10, 4096)) == 10
    thing.script("INSERT INTO t VALUES (2, 'y')")
    assert thing.db.length == committed_length(wal.read_bytes())


def test_a_checkpoint_within_a_transaction_is_refused(thing: Any) -> None:
    """A busy database is not folded, and nothing is lost."""
    thing.db.begin()
    thing.db.write("INSERT INTO t VALUES (1, 'x')")
    length = thing.db.length
    assert not thing.db.checkpoint()
    thing.db.commit()
    assert thing.db.length > length
    assert thing.rows("SELECT i FROM t") == [(1,)]


def test_reading_the_base_keeps_strangers_out(thing: Any) -> None:
    """Reading chunks drops no lock: a shell that opens a live object cannot fold or delete its log."""
    thing.script("INSERT INTO t VALUES (1, 'x')")
    thing.db.read_base(0, 1 << 20)
    thing.db.checkpoint()
    thing.script("INSERT INTO t VALUES (2, 'y')")
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('select count(*) from t').fetchall()"
    stranger = subprocess.run(
        [sys.executable, "-c", code, str(thing.path)], capture_output=True, text=True, check=False
    )
    assert "locked" in stranger.stderr
    wal = thing.path.with_name(thing.path.name + "-wal")
    assert committed_length(wal.read_bytes()) == thing.db.length > 0


def test_case_9_the_build_is_fixed_and_nothing_else_writes_or_maps() -> None:
    """Case 9: SQLite is past the WAL-reset defect, and mmap is off."""
    assert tuple(map(int, apsw.sqlite_lib_version().split("."))) >= (3, 51, 3)


def test_what_no_file_remembers_is_set_at_every_opening(thing: Any) -> None:
    """Case 9, 86: settings of the connection are the same at first and after every reopening."""

    def settings_now(one: Any) -> list[Any]:
        names = "mmap_size synchronous locking_mode foreign_keys journal_mode max_page_count temp_store".split()  # noqa: SIM905
        return [one.rows(f"PRAGMA {name}") for name in names]

    first = settings_now(thing)
    assert first == [[(0,)], [(0,)], [("exclusive",)], [(1,)], [("wal",)], [((64 << 20) // 4096,)], [(1,)]]
    again = thing.reopened()
    assert settings_now(again) == first
    again.db.close()


def test_a_doomed_connection_commits_no_more(thing: Any) -> None:
    """Taking the connection away stops the commit of a method that is still running."""

    def method() -> None:
        thing.sql.exec("INSERT INTO t VALUES (1, 'x')")
        assert thing.db.doom()

    length = thing.db.length
    with pytest.raises(Ended):
        thing.call(method)
    assert thing.db.length == length
    with pytest.raises(Ended):
        thing.call(lambda: 1)
    thing.db.close()


def test_only_the_runtime_commits(thing: Any) -> None:
    """The commit hook is the lock on the door: even SQL that got past the authorizer commits nothing."""
    thing.db.begin()
    thing.db.write("INSERT INTO t VALUES (1, 'x')")
    with pytest.raises(Exception, match="constraint"):
        thing.db.internal("COMMIT", ())
    assert not thing.db.in_transaction
    assert thing.rows("SELECT * FROM t") == []


def test_close_from_outside_while_a_thread_is_inside(thing: Any) -> None:
    """Closing beneath a running statement says so, stops it, and succeeds once the thread is out."""
    began = threading.Event()
    ended: list[str] = []

    def run() -> None:
        done = thing.call(lambda: [began.set(), thing.sql.query(_LONG)])
        ended.append(type(done.error).__name__)

    thread = threading.Thread(target=run)
    thread.start()
    began.wait()
    while not thing.db.close():
        thread.join(0.01)
    thread.join()
    assert ended == ["CallTimeout"]
    assert thing.db.close()
    thing.db.interrupt()


def test_a_full_object_reads_and_deletes(opened: Callable[..., Any]) -> None:
    """At the cap writes fail, reads and deletes work, and room that was made is used again."""
    one = opened(bytes_max=100 * 4096)
    one.script("CREATE TABLE t(i INTEGER PRIMARY KEY, b)")
    done = one.call(lambda: [one.sql.exec("INSERT INTO t(b) VALUES (zeroblob(4000))") for _ in range(200)])
    assert type(done.error).__name__ == "DatabaseFull"
    for _ in range(20):
        one.call(lambda: [one.sql.exec("INSERT INTO t(b) VALUES (zeroblob(12000))") for _ in range(5)])
    assert one.db.is_full or one.rows("PRAGMA page_count")[0][0] > 85
    assert one.rows("SELECT count(*) > 10 FROM t") == [(1,)]
    assert one.ok(lambda: one.sql.exec("DELETE FROM t"), idempotency_key="k") > 10
    assert not one.db.is_full
    one.script("INSERT INTO t(b) VALUES (zeroblob(50000))")


def test_case_93_temporary_space(tmp_path: Path) -> None:
    """Case 93: a big sort spills into the node's own directory, ships nothing of it, and leaves nothing there."""
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from domicile.node.sqlite.setup import configure_sqlite
configure_sqlite({str(tmp_path / "temp")!r})
from conftest import Opened
from pathlib import Path
from domicile.node.sqlite.birth import IMAGE
path = Path({str(tmp_path)!r}) / "o.db"
path.write_bytes(IMAGE)
one = Opened(path)
spilled = []
def look():
    fds = (f"/proc/self/fd/{{fd}}" for fd in os.listdir("/proc/self/fd"))
    found = [os.readlink(fd) for fd in fds if os.path.lexists(fd)]
    spilled.extend(name for name in found if name.startswith({str(tmp_path / "temp")!r}))
    return False
one.db._connection.set_progress_handler(look, 20000)
sql = ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
       " SELECT count(*) AS n FROM (SELECT randomblob(300) AS r FROM n ORDER BY r LIMIT -1 OFFSET 0)")
assert one.ok(lambda: one.sql.one(sql)) == {{"n": 20000}}
assert one.db.length == 0
assert spilled, "the sort stayed in memory"
assert os.listdir({str(tmp_path / "temp")!r}) == []
"""
    (tmp_path / "temp").mkdir()
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_case_93_temporary_space_is_bounded(opened: Callable[..., Any]) -> None:
    """Case 93: a statement that needs more temporary space than allowed fails by name; the object goes on."""
    vfs = TempVfs("bounded", "", 1 << 20)
    one = opened(vfs="bounded")
    one.script("CREATE TABLE t(i INTEGER PRIMARY KEY, b)")
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {})"
    text = numbers + " SELECT count(*) AS n FROM (SELECT randomblob(300) AS r FROM n ORDER BY r LIMIT -1 OFFSET 0)"
    with pytest.raises(SqlError, match="temporary space"):
        one.ok(lambda: one.sql.one(text.format(20000)))
    one.script(numbers.format(20000) + " INSERT INTO t(b) SELECT randomblob(300) FROM n")
    length = one.db.length
    with pytest.raises(SqlError, match="temporary space"):
        one.script("CREATE INDEX tb ON t(b)")
    assert one.db.length == length
    assert one.ok(lambda: one.sql.one(text.format(1000))) == {"n": 1000}
    assert one.rows("PRAGMA integrity_check") == [("ok",)]
    assert one.db.checkpoint()
    one.db.close()
    del vfs
