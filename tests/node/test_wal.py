"""The log walked and folded as SQLite itself does it; broken bytes are a shorter log, never an exception."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from struct import pack, unpack

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domicile.node.sqlite import wal
from domicile.node.sqlite.walsum import checksum_frames, checksum_pairs

FRAME = wal.FRAME_HEADER + wal.PAGE_BYTES

NUMBERS = r"(with recursive n(value) as (values(1) union all select value + 1 from n where value < \1) select * from n)"


class Source:
    """A database in WAL mode that never checkpoints by itself; the hook's frame count is the truth to compare with."""

    def __init__(self, path: Path, page_size: int = wal.PAGE_BYTES) -> None:
        self.path = str(path)
        self.db = apsw.Connection(self.path)
        self.db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self.db.execute(f"pragma page_size={page_size}; pragma journal_mode=wal; pragma synchronous=0").fetchall()
        self.frames = 0
        self.db.set_wal_hook(self._committed)

    def _committed(self, _db: apsw.Connection, _name: str, frames: int) -> int:
        self.frames = frames
        return 0

    def run(self, sql: str) -> None:
        """`numbers(n)` stands for a table of 1 to n."""
        self.db.execute(re.sub(r"numbers\((\d+)\)", NUMBERS, sql)).fetchall()

    def base(self) -> bytes:
        return Path(self.path).read_bytes()

    def log(self) -> bytes:
        return Path(self.path + "-wal").read_bytes()

    def checkpoint(self) -> bytes:
        self.run("pragma journal_mode")
        assert self.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE) == (0, 0)
        return self.base()


@dataclass(frozen=True)
class Written:
    """What one source left; kept out of failure reports, being long."""

    base: bytes = field(repr=False)
    log: bytes = field(repr=False)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Twelve commits of one or several frames."""
    source = Source(tmp_path_factory.mktemp("wal") / "a")
    source.run("create table t(k integer primary key, v)")
    for n in range(11):
        source.run(f"insert into t values({n}, randomblob({n * 900}))")
    assert wal.walk(source.log()).frames == source.frames
    return Written(source.base(), source.log())


@pytest.fixture(scope="module")
def log(written: Written) -> bytes:
    return written.log


def commits(log: bytes) -> list[int]:
    """The lengths at which a commit ends, read from the frame headers."""
    headers = range(wal.LOG_HEADER, len(log), FRAME)
    return [at + FRAME for at in headers if unpack(">I", log[at + 4 : at + 8])[0]]


def last_commit(log: bytes, length: int) -> int:
    return max((end for end in commits(log) if end <= length), default=0)


def test_walk_finds_the_hooks_count(log: bytes) -> None:
    """The walk ends where SQLite's own hook says the log is committed, with the size of the database there."""
    found = wal.walk(log)
    assert found.length == wal.length_of(found.frames) == len(log)
    assert found.pages == unpack(">I", log[-FRAME + 4 : -FRAME + 8])[0]


@pytest.mark.parametrize("page_size", [512, 1024, 4096, 8192, 32768, 65536])
def test_walk_reads_every_page_size(page_size: int, tmp_path: Path) -> None:
    """Any page size SQLite knows is walked to the hook's count."""
    source = Source(tmp_path / "a", page_size)
    source.run("create table t(v)")
    for n in range(9):
        source.run(f"insert into t values(randomblob({n * 3000}))")
    head = wal.header(source.log())
    assert head is not None
    assert head.page_size == page_size
    assert wal.walk(source.log()).frames == source.frames
    assert wal.walk(source.log()).length == wal.length_of(source.frames, page_size)


def test_walk_reads_big_endian_checksums(log: bytes) -> None:
    """A log written on a big-endian machine is read as well."""
    assert wal.walk(as_big_endian(log)) == wal.walk(log)
    broken = bytearray(as_big_endian(log))
    broken[-1] ^= 1
    assert wal.walk(bytes(broken)).length == last_commit(log, len(log) - 1)


def as_big_endian(log: bytes) -> bytes:
    """The same log with the other magic and the checksums computed anew, by the plain loop."""
    head = pack(">I", 0x377F0683) + log[4:24]
    state = checksum_pairs(head, True)
    out = bytearray(head + pack(">II", *state))
    for at in range(wal.LOG_HEADER, len(log), FRAME):
        state = checksum_pairs(log[at : at + 8] + log[at + 24 : at + FRAME], True, state)
        out += log[at : at + 16] + pack(">II", *state) + log[at + 24 : at + FRAME]
    return bytes(out)


@given(data=st.data(), page_size=st.sampled_from([512, 1024, 2048, 4096, 8192]), big=st.booleans())
@settings(max_examples=40, deadline=None)
def test_many_frames_at_once_equal_the_plain_loop(data: st.DataObject, page_size: int, big: bool) -> None:
    """Checksums summed in lanes are those of SQLite's loop, for any content, length and start."""
    frames = data.draw(st.integers(0, 5))
    pattern = data.draw(st.binary(min_size=1, max_size=64))
    size = frames * (24 + page_size)
    log = bytes(32) + (pattern * (size // len(pattern) + 1))[:size] + data.draw(st.binary(max_size=30))
    state = (data.draw(st.integers(0, 2**32 - 1)), data.draw(st.integers(0, 2**32 - 1)))
    expected, running = [], state
    for at in range(32, 32 + size, 24 + page_size):
        running = checksum_pairs(log[at : at + 8] + log[at + 24 : at + 24 + page_size], big, running)
        expected.append(running)
    assert list(checksum_frames(log, page_size, state, big))[:frames] == expected


def test_lanes_hold_the_greatest_words() -> None:
    """No lane overflows, whatever the words are, over more frames than one batch has."""
    log = bytes(32) + b"\xff" * (FRAME * 130)
    running = (2**32 - 1, 2**32 - 1)
    plain = []
    for at in range(32, len(log), FRAME):
        running = checksum_pairs(log[at : at + 8] + log[at + 24 : at + FRAME], False, running)
        plain.append(running)
    assert list(checksum_frames(log, wal.PAGE_BYTES, (2**32 - 1, 2**32 - 1), False)) == plain


BROKEN: dict[str, tuple[Callable[[bytes], bytes], int]] = {
    "empty": (lambda log: b"", 0),
    "short header": (lambda log: log[:31], 0),
    "header alone": (lambda log: log[:32], 0),
    "zeros": (lambda log: bytes(len(log)), 0),
    "another magic": (lambda log: b"\0" + log[1:], 0),
    "another format": (lambda log: log[:7] + b"\1" + log[8:], 0),
    "page size 0": (lambda log: log[:8] + bytes(4) + log[12:], 0),
    "salt flipped in the header": (lambda log: log[:16] + bytes([log[16] ^ 1]) + log[17:], 0),
    "checksum flipped in the header": (lambda log: log[:31] + bytes([log[31] ^ 1]) + log[32:], 0),
    "cut in the first frame": (lambda log: log[:4000], 0),
    "last byte gone": (lambda log: log[:-1], -1),
    "last frame gone": (lambda log: log[:-FRAME], -1),
    "garbage appended": (lambda log: log + b"\xa5" * FRAME * 2, 0x7FFFFFFF),
    "zeros appended": (lambda log: log + bytes(FRAME * 2), 0x7FFFFFFF),
    "old frame appended": (lambda log: log + log[32 : 32 + FRAME], 0x7FFFFFFF),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_logs_end_at_the_last_whole_commit(name: str, log: bytes) -> None:
    """Torn, flipped, empty or short: what is left is the log up to its last whole commit, and no exception."""
    breaks, limit = BROKEN[name]
    broken = breaks(log)
    expected = last_commit(log, len(broken) if limit else 0)
    found = wal.walk(broken)
    assert found.length == expected
    assert found.frames == wal.frames_between(0, expected)
    assert (found.pages == 0) == (expected == 0)


@given(at=st.integers(0, 10**6), bit=st.integers(0, 7))
@settings(max_examples=60, deadline=None)
def test_a_flipped_bit_ends_the_log_before_it(at: int, bit: int, written: Written) -> None:
    """Whichever bit flips, nothing at or behind its frame counts."""
    log = written.log
    at %= len(log)
    broken = bytearray(log)
    broken[at] ^= 1 << bit
    frame_start = wal.LOG_HEADER + (at - wal.LOG_HEADER) // FRAME * FRAME if at >= wal.LOG_HEADER else 0
    assert wal.walk(bytes(broken)).length == last_commit(log, frame_start)


@given(cut=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_any_cut_is_what_sqlite_recovers(cut: int, written: Written, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A log cut anywhere recovers in SQLite exactly as far as the walk says."""
    base, log = written.base, written.log
    cut %= len(log) + 1
    length = wal.walk(log[:cut]).length
    assert length == last_commit(log, cut)
    folder = tmp_path_factory.mktemp("cut")
    (folder / "a").write_bytes(base)
    (folder / "a-wal").write_bytes(log[:cut])
    (folder / "b").write_bytes(wal.fold(base, log[:cut]))
    rows = [rows_of(folder / name) for name in ("a", "b")]
    assert rows[0] == rows[1]
    shutil.rmtree(folder)


def rows_of(path: Path) -> list[tuple[object, ...]]:
    db = apsw.Connection(str(path))
    tables = [name for (name,) in db.execute("select name from sqlite_master")]
    rows = [row for name in tables for row in db.execute(f"select * from {name}")]
    db.close()
    return rows


def test_a_spilled_rollback_is_not_committed(tmp_path: Path) -> None:
    """Frames of a rolled-back transaction that reached the file, with valid salts and checksums, do not count."""
    source = Source(tmp_path / "a")
    source.run("create table t(v); pragma cache_size=5")
    source.run("insert into t values(1)")
    committed = source.frames
    source.run("begin; insert into t select randomblob(3000) from numbers(60)")
    source.run("rollback")
    assert len(source.log()) > wal.length_of(committed)
    assert wal.walk(source.log()).frames == committed


def test_lengths_and_frames_are_two_sides() -> None:
    """Bytes and frames convert both ways; no frames is length 0, and no other length is taken."""
    assert wal.length_of(0) == 0
    assert wal.length_of(3) == 32 + 3 * 4120
    assert wal.frames_between(wal.length_of(2), wal.length_of(7)) == 5
    assert wal.frames_between(0, wal.length_of(1)) == 1
    for wrong in (32, 33, 4151, 4153):
        with pytest.raises(AssertionError):
            wal.frames_between(0, wrong)


OPERATIONS = st.sampled_from(
    [
        "insert into t(v) values(randomblob(20))",
        "insert into t(v) select randomblob(4000) from numbers(40)",
        "insert into u select randomblob(30), k from t limit 20",
        "update t set v = randomblob(2000) where k % 3 = 0",
        "delete from t where k % 2 = 0",
        "delete from t",
        "drop table if exists w",
        "create table if not exists w as select * from t",
        "vacuum",
        "insert into f select hex(v) from t limit 5",
        "savepoint s; insert into t(v) select randomblob(9000) from numbers(30); rollback to s; release s",
        "begin; insert into t(v) select randomblob(3000) from numbers(60); rollback",
    ]
)


@given(
    generations=st.lists(st.lists(OPERATIONS, max_size=5), min_size=1, max_size=3),
    page_size=st.sampled_from([1024, 4096, 8192]),
    vacuum=st.integers(0, 2),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_fold_is_sqlites_checkpoint(
    generations: list[list[str]], page_size: int, vacuum: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The fold gives byte for byte what TRUNCATE leaves, and only the chunks said to be dirty differ."""
    folder = tmp_path_factory.mktemp("fold")
    source = Source(folder / "a", page_size)
    source.run(f"pragma auto_vacuum={vacuum}; pragma cache_size=10")
    source.run("create table t(k integer primary key, v); create virtual table f using fts5(x)")
    source.run("create table u(a primary key, b) without rowid")
    for operations in generations:
        for operation in operations:
            source.run(operation)
        base, log = source.base(), source.log()
        folded = source.checkpoint()
        assert wal.fold(base, log) == folded
        check_dirty(base, log[: wal.walk(log).length], folded, page_size)
    source.db.close()
    shutil.rmtree(folder)


def check_dirty(base: bytes, log: bytes, folded: bytes, page_size: int) -> None:
    if not log:
        assert base == folded
        return
    dirty = wal.dirty_chunks(log, len(base), page_size)
    assert dirty.pages * page_size == len(folded)
    size = wal.CHUNK_BYTES
    chunks = range((len(folded) + size - 1) // size)
    assert dirty.chunks <= set(chunks)
    for index in set(chunks) - dirty.chunks:
        assert base[index * size : (index + 1) * size] == folded[index * size : (index + 1) * size]


def test_dirty_chunks_of_a_large_base(tmp_path: Path) -> None:
    """A write to one row of a 5 MiB database dirties its chunk alone; a shrunk one is dirty where it ends."""
    source = Source(tmp_path / "a")
    source.run("create table t(k integer primary key, v)")
    source.run("insert into t select value, zeroblob(4000) from numbers(1300)")
    base = source.checkpoint()
    source.run("update t set v = zeroblob(3999) where k = 1290")
    log = source.log()
    dirty = wal.dirty_chunks(log, len(base))
    assert dirty.chunks == {5}
    check_dirty(base, log, source.checkpoint(), wal.PAGE_BYTES)
    base = source.base()
    source.run("delete from t where k > 100; vacuum")
    log = source.log()[: wal.length_of(source.frames)]
    check_dirty(base, log, source.checkpoint(), wal.PAGE_BYTES)


def test_shrinking_or_growing_dirties_the_ends() -> None:
    """Chunks between the old end and the new are dirty though no frame names a page there."""
    frame = pack(">II", 1, 300) + bytes(16) + bytes(4096)
    log = bytes(32) + frame
    assert wal.dirty_chunks(log, 300 * 4096).chunks == {0}
    assert wal.dirty_chunks(log, 900 * 4096).chunks == {0, 1}
    assert wal.dirty_chunks(log, 10 * 4096).chunks == {0, 1}
    assert wal.page_numbers(log * 1) == [1]


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=9000))
def test_garbage_is_an_empty_log(garbage: bytes) -> None:
    """Nothing that SQLite did not write is a log, and nothing raises."""
    assert wal.walk(garbage) == wal.NOTHING
    assert wal.fold(b"base", garbage) == b"base"
