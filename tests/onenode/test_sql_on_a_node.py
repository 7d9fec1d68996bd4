"""What methods do to their database, through a whole node: no escape, no half call, nothing that stays open."""

from __future__ import annotations

import asyncio
import os

import pytest

import domicile
from domicile import Object
from domicile.errors import BadApp, DatabaseFull, DomicileError, MethodFailed, SqlError, SqlRefused


class Lab(Object):
    """Runs what it is told."""

    def init(self):
        self.sql.exec("CREATE TABLE t (id INTEGER PRIMARY KEY, b)")
        self.sql.exec("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        self.sql.exec("CREATE TABLE child (p INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY IMMEDIATE)")
        self.sql.exec("CREATE TABLE late (p INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")
        self.sql.exec("CREATE TRIGGER no BEFORE INSERT ON t WHEN NEW.id = -13 BEGIN SELECT RAISE(ROLLBACK, 'no'); END")

    def run(self, statements: list[str]) -> list[list[dict]]:
        return [self.sql.query(sql) for sql in statements]

    def run_and_catch(self, statements: list[str]) -> str:
        """Swallows every error and goes on."""
        errors = 0
        for sql in statements:
            try:
                self.sql.exec(sql)
            except DomicileError:
                errors += 1
        return f"{errors} swallowed"

    def put(self, i: int, size: int = 10) -> int:
        self.sql.exec("INSERT INTO t VALUES (?, zeroblob(?))", i, size)
        return i

    def ids(self) -> list[int]:
        return [row["id"] for row in self.sql.query("SELECT id FROM t ORDER BY id")]

    def nested(self, how: str) -> None:
        with self.sql.tx():
            self.put(1)
            try:
                with self.sql.tx():
                    self.put(2)
                    if how == "three levels":
                        with self.sql.tx():
                            self.put(4)
                    raise LookupError
            except LookupError:
                pass
            self.put(3)
            if how == "outer raises":
                raise ValueError("outer")

    async def nested_elsewhere(self) -> str:
        async def other() -> None:
            with self.sql.tx():
                self.put(2)

        with self.sql.tx():
            self.put(1)
            try:
                await asyncio.create_task(other())
            except SqlError as error:
                return error.detail
        return "?"

    def leak(self) -> int:
        self.keep = iter(self.sql.query("SELECT * FROM t"))
        next(self.keep)
        self.kept_api = self.sql
        return 1

    def generate(self):
        return iter(self.sql.query("SELECT * FROM t"))

    def fill(self) -> str:
        try:
            for i in range(100_000):
                self.put(100 + i, 100_000)
        except DatabaseFull:
            self.run_and_catch(["INSERT INTO t VALUES (99, 'after')"])
        return "ok"

    def delete_half(self) -> int:
        return self.sql.exec("DELETE FROM t WHERE id % 2")

    def sort(self, rows: int) -> int:
        big = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})"
        return self.sql.one(f"{big} SELECT i FROM n ORDER BY randomblob(300) LIMIT 1 OFFSET {rows - 1}")["i"]

    def spill(self) -> None:
        self.sql.exec("CREATE TEMP TABLE scratch (b)")

    @domicile.read
    def version(self) -> dict:
        return {"v": self.sql.one("SELECT sqlite_version() AS v")["v"], "m": self.sql.query("PRAGMA mmap_size")}

    def state(self) -> str:
        return self.sql.one("PRAGMA journal_mode")["journal_mode"]


CONTROL = ["BEGIN", "begin", "/* x */ BEGIN", "-- x\nbegin", "BEGIN EXCLUSIVE", "COMMIT", "/* x */ commit", "END"]
CONTROL += ["ROLLBACK", "-- x\nRollback", "SAVEPOINT a", "RELEASE a", "ROLLBACK TO a"]


def test_transaction_control_is_refused_and_nothing_of_the_call_stays(run):
    """BEGIN, COMMIT, SAVEPOINT in any dress: refused by name, the call is undone, the next one is clean, now and after
    a restore (field case 79)."""

    async def scenario(home):
        for sql in CONTROL:
            with pytest.raises(SqlRefused):
                await home.call("Lab", sql, "run", ["INSERT INTO t VALUES (1, 1)", sql, "INSERT INTO t VALUES (2, 2)"])
            assert await home.call("Lab", sql, "ids") == []
            await home.call("Lab", sql, "run_and_catch", [sql, "INSERT INTO t VALUES (3, 3)", sql])
            assert await home.call("Lab", sql, "ids") == [3]
        await home.restart(crash=True, cold=True)
        for sql in CONTROL:
            assert await home.call("Lab", sql, "ids") == [3]

    run(scenario, Lab)


def test_inner_blocks_are_undone_alone(run):
    """Three levels; inner fails and outer goes on; outer fails; inner from another task of the call (field case
    80)."""

    async def scenario(home):
        await home.call("Lab", "a", "nested", "three levels")
        assert await home.call("Lab", "a", "ids") == [1, 3]
        with pytest.raises(MethodFailed):
            await home.call("Lab", "b", "nested", "outer raises")
        assert await home.call("Lab", "b", "ids") == []
        assert "another task" in await home.call("Lab", "c", "nested_elsewhere")
        assert await home.call("Lab", "c", "ids") == [1]
        await home.restart(crash=True, cold=True)
        assert await home.call("Lab", "a", "ids") == [1, 3]

    run(scenario, Lab)


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        (
            ["INSERT INTO t VALUES (2, 2)", "INSERT OR ROLLBACK INTO t VALUES (1, 1)", "INSERT INTO t VALUES (3, 3)"],
            "UNIQUE",
        ),
        (["INSERT INTO t VALUES (2, 2)", "INSERT INTO t VALUES (-13, 1)", "INSERT INTO t VALUES (3, 3)"], "no"),
    ],
)
def test_what_sqlite_rolls_back_takes_the_call_with_it(run, statements, says):
    """After OR ROLLBACK or RAISE(ROLLBACK) nothing runs outside the transaction: the call fails whole, with the first
    error, though its method swallows it (field case 81)."""

    async def scenario(home):
        await home.call("Lab", "a", "put", 1)
        with pytest.raises(SqlError, match=says):
            await home.call("Lab", "a", "run_and_catch", statements)
        assert await home.call("Lab", "a", "ids") == [1]
        await home.restart(crash=True, cold=True)
        assert await home.call("Lab", "a", "ids") == [1]

    run(scenario, Lab)


def test_a_full_object_fails_writes_and_serves_reads_and_deletes(run):
    """At the size cap a call fails whole with `database_full`; reads, deletes and a restore work, and there is room
    again after (field case 81)."""

    async def scenario(home):
        await asyncio.gather(*(home.call("Lab", "a", "put", i, 100_000) for i in range(12)))
        with pytest.raises(DatabaseFull):
            await home.call("Lab", "a", "fill")
        assert await home.call("Lab", "a", "ids") == list(range(12))
        outcomes = [home.call("Lab", "a", "put", 1000 + i, 100_000) for i in range(20)]
        outcomes = await asyncio.gather(*outcomes, return_exceptions=True)
        assert any(isinstance(outcome, DatabaseFull) for outcome in outcomes)
        kept = await home.call("Lab", "a", "ids")
        assert await home.call("Lab", "a", "delete_half", idempotency_key="d") > 5
        assert await home.call("Lab", "a", "put", 5000, 100_000) == 5000
        await home.restart(crash=True, cold=True)
        assert await home.call("Lab", "a", "ids") == [i for i in kept if not i % 2] + [5000]
        assert home.residency("Lab", "a").log.base.size < 3 << 20

    run(scenario, Lab, object_db_max_mb=2)


def test_a_call_that_failed_inside_a_block_leaves_nothing_open(run):
    """One call raises inside `tx`; every later one is durable (field case 82)."""

    async def scenario(home):
        with pytest.raises(MethodFailed):
            await home.call("Lab", "a", "nested", "outer raises")
        for i in range(10, 110):
            await home.call("Lab", "a", "put", i)
        await home.restart(crash=True, cold=True)
        assert await home.call("Lab", "a", "ids") == list(range(10, 110))

    run(scenario, Lab)


def test_a_script_is_undone_whole(run):
    """Several statements in one text are part of the call: an error in the last undoes the first (field case 83)."""
    script = "CREATE TABLE z (x); INSERT INTO z VALUES (1); INSERT INTO nope VALUES (1)"

    class Script(Lab):
        def script(self, sql: str) -> None:
            self.put(1)
            self.sql.exec(sql)

        def handle(self) -> list[str]:
            return [name for name in dir(self.sql) if name in ("commit", "rollback", "close", "connection", "backup")]

    async def scenario(home):
        with pytest.raises(SqlError, match="nope"):
            await home.call("Script", "a", "script", script)
        assert await home.call("Script", "a", "ids") == []
        assert await home.call("Script", "a", "handle") == []
        assert await home.call("Script", "a", "run", ["SELECT name FROM sqlite_schema WHERE name = 'z'"]) == [[]]
        assert await home.call("Script", "a", "put", 2) == 2

    run(scenario, Script)


def test_foreign_keys_hold_in_every_place(run):
    """Enforced in the same call, the next, after sleep, restart, crash and cold restore; a deferred violation fails
    the call at its commit (field case 86)."""

    async def scenario(home):
        async def enforced():
            with pytest.raises(SqlError, match="FOREIGN KEY"):
                await home.call("Lab", "a", "run", ["INSERT INTO child VALUES (7)"])
            with pytest.raises(SqlError, match="FOREIGN KEY"):
                await home.call("Lab", "a", "run", ["INSERT INTO t VALUES (1, 1)", "INSERT INTO late VALUES (7)"])
            assert await home.call("Lab", "a", "ids") == []
            await home.call("Lab", "a", "run_and_catch", ["PRAGMA foreign_keys=OFF"])

        await enforced()
        await enforced()
        await home.sleep_object("Lab", "a")
        await enforced()
        await home.restart()
        await enforced()
        await home.restart(crash=True)
        await enforced()
        await home.restart(crash=True, cold=True)
        await enforced()
        await home.call("Lab", "a", "run", ["INSERT INTO late VALUES (7)", "INSERT INTO parent VALUES (7)"])
        assert await home.call("Lab", "a", "run", ["PRAGMA foreign_key_check"]) == [[]]

    run(scenario, Lab)


ESCAPES = [
    "ATTACH '{dir}/x.db' AS z",
    "/**/ attach 'file:{dir}/x.db' AS z",
    "ATTACH ':memory:' AS z",
    "ATTACH '' AS z",
    "VACUUM INTO '{dir}/e.db'",
    "VACUUM",
    "SELECT load_extension('x')",
    "PRAGMA temp_store_directory='/'",
    "PRAGMA writable_schema=ON",
    "SELECT readfile('/etc/passwd')",
    "SELECT writefile('{dir}/w', 'x')",
    "CREATE VIRTUAL TABLE v USING dbstat",
    "CREATE VIRTUAL TABLE v USING csv(filename='/etc/passwd')",
    "DELETE FROM _domicile_meta",
    "PRAGMA wal_checkpoint(PASSIVE)",
    "PRAGMA wal_checkpoint(TRUNCATE)",
]


def test_no_statement_leaves_the_object(run, tmp_path):
    """ATTACH, VACUUM INTO, extensions, files, the runtime's own tables: refused, no file appears, other objects are
    out of reach (field cases 87 and 9)."""

    async def scenario(home):
        await home.call("Lab", "a", "put", 1)
        outside = tmp_path / "outside"
        outside.mkdir()
        for sql in ESCAPES:
            with pytest.raises((SqlRefused, SqlError)):
                await home.call("Lab", "a", "run", ["INSERT INTO t VALUES (2, 2)", sql.format(dir=outside)])
            assert await home.call("Lab", "a", "ids") == [1], sql
        assert os.listdir(outside) == []
        directory = os.path.dirname(home.residency("Lab", "a").engine.files.base)
        assert sorted(os.listdir(directory)) == ["db", "db-wal", "sidecar"]

    run(scenario, Lab)


def test_the_journal_mode_stays(run):
    """However a method asks for another journal mode, it stays WAL and every write ships (field case 11)."""
    modes = ["DELETE", "TRUNCATE", "PERSIST", "MEMORY", "OFF"]

    async def scenario(home):
        for mode in modes:
            asks = [f"PRAGMA journal_mode={mode}", f"/* x */ pragma main.JOURNAL_MODE = {mode.lower()}"]
            asks += ["PRAGMA locking_mode=NORMAL", f"SELECT * FROM pragma_journal_mode('{mode}')"]
            for i, ask in enumerate(asks):
                await home.call("Lab", mode, "run_and_catch", [ask, f"INSERT INTO t VALUES ({i}, 1)", ask])
            assert await home.call("Lab", mode, "state") == "wal"
        await home.restart(crash=True, cold=True)
        for mode in modes:
            assert await home.call("Lab", mode, "ids") == [0, 1, 2, 3]
            assert await home.call("Lab", mode, "state") == "wal"

    run(scenario, Lab)


def test_the_sqlite_in_use_is_not_of_the_broken_range(run):
    """The library is at least 3.51.3, and nothing is mapped into memory (field case 9)."""

    async def scenario(home):
        about = await home.call("Lab", "a", "version")
        assert tuple(map(int, about["v"].split("."))) >= (3, 51, 3)
        assert about["m"] in ([], [{"mmap_size": 0}])

    run(scenario, Lab)


def test_a_method_that_streams_is_no_method(run):
    """A generator is refused when the application is loaded: no client can leave one half read (field case 8)."""

    class Stream(Object):
        def rows(self):
            yield from self.sql.query("SELECT 1")

    async def scenario(home):
        raise AssertionError("it was loaded")

    with pytest.raises(BadApp, match="generator"):
        run(scenario, Stream)


def test_kept_cursors_do_not_hold_the_log(run):
    """What a method keeps of a query is rows, not a cursor: rotations go on and the log stays bounded; an
    iterator is no result (field case 8)."""

    async def scenario(home):
        await home.call("Lab", "a", "put", 1)
        assert await home.call("Lab", "a", "leak") == 1
        with pytest.raises(MethodFailed):
            await home.call("Lab", "a", "generate")
        longest = 0
        for i in range(0, 1000, 20):
            await asyncio.gather(*(home.call("Lab", "a", "put", 10 + i + j, 4000) for j in range(20)))
            longest = max(longest, os.path.getsize(home.residency("Lab", "a").engine.files.log))
        assert home.residency("Lab", "a").log.generation.counter > 2
        assert longest < 3 << 20

    run(scenario, Lab, object_wal_rotate_kb=256)


def test_big_sorts_use_temporary_space_and_give_it_back(run):
    """A sort of some 20 MB works, ships nothing and leaves no file; one beyond the bound fails by name and leaves the
    object usable; temporary tables are refused by name (field case 93)."""

    async def scenario(home):
        await home.call("Lab", "a", "put", 1)
        mark = (await home.landed("Lab", "a")) and home.residency("Lab", "a").log.mark
        assert 1 <= await home.call("Lab", "a", "sort", 60_000) <= 60_000
        with pytest.raises(DomicileError, match="temporary space"):
            await home.call("Lab", "a", "sort", 200_000)
        with pytest.raises(SqlRefused, match="TEMP TABLE"):
            await home.call("Lab", "a", "spill")
        assert home.residency("Lab", "a").log.mark == mark
        held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if is_link(fd)]
        assert not [path for path in held if "etilqs" in path]
        assert await home.call("Lab", "a", "put", 2) == 2
        assert await home.call("Lab", "a", "ids") == [1, 2]

    run(scenario, Lab, object_db_max_mb=8)


def is_link(fd):
    return os.path.lexists(f"/proc/self/fd/{fd}")
