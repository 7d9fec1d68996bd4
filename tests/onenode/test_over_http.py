"""A whole node behind its HTTP surface: names, databases, batches, clients that read slowly."""

from __future__ import annotations

import asyncio
import contextlib
import unicodedata

import domicile
from domicile import Client, Object
from domicile.errors import BadName
from domicile.node.telemetry import exposition, node_registry


class Named(Object):
    """Remembers its own name, in its rows and by its alarm."""

    def init(self):
        self.sql.exec("CREATE TABLE names (what TEXT, name TEXT)")

    def write(self) -> str:
        self.sql.exec("INSERT INTO names VALUES ('call', ?)", self.name)
        self.set_alarm(0.3, payload=self.name)
        return self.name

    def on_alarm(self, alarm) -> None:
        self.sql.exec("INSERT INTO names VALUES ('alarm', ?)", alarm.payload if alarm.payload == self.name else "?")

    @domicile.read
    def read(self) -> list[list[str]]:
        return [[r["what"], r["name"]] for r in self.sql.query("SELECT what, name FROM names ORDER BY what")]

    def ask(self, other: str) -> list[list[str]]:
        return self.object(Named, other).read()

    def fill(self, i: int) -> None:
        self.sql.exec("INSERT INTO names VALUES (?, hex(randomblob(50000)))", str(i))

    @domicile.read
    def all(self) -> list[str]:
        return [r["name"] for r in self.sql.query("SELECT name FROM names")]


NAMES = [
    "a/b",
    "a%2Fb",
    "a%252Fb",
    "..",
    ".",
    " ",
    "a b",
    "a+b",
    "#",
    "?x=1",
    "%1F",
    "x",
    "n" * 255,
    "🎉",
    "A",
    "a",
    "x/",
]
NAMES += [
    ";",
    unicodedata.normalize("NFC", "é"),
    unicodedata.normalize("NFD", "é"),
    "%00",
    "a//b",
    "../../etc",
    "\\",
    "con",
]


def test_every_name_is_its_own_object_everywhere(run):
    """Each allowed name is one object by HTTP, by inner call, by its alarm after sleep, in the list, after a cold
    restore; forbidden ones are refused at once, and no file leaves the data directory (field case 103)."""

    async def scenario(home):
        assert len(set(NAMES)) == len(NAMES)
        async with home.http() as url, Client(url, timeout_secs=10) as client:
            project = client.project("demo")
            for name in NAMES:
                assert await project.object("Named", name).write() == name
                await home.sleep_object("Named", name)
            for name in NAMES:

                async def rang(name=name):
                    return ["alarm", name] in await project.object("Named", name).read()

                await home.until(rang, f"the alarm of {name!r}")
                assert await project.object("Named", name).read() == [["alarm", name], ["call", name]]
                assert await project.object("Named", "asker").ask(name) == [["alarm", name], ["call", name]]
            listed = [info.name async for info in project.objects("Named")]
            assert sorted(listed) == sorted([*NAMES, "asker"])
            for name in ("n" * 256, "n" * 5000, "a\0b", ""):
                with contextlib.suppress(BadName):
                    raise AssertionError(await project.object("Named", name).write())
        await home.restart(crash=True, cold=True)
        async with home.http() as url, Client(url, timeout_secs=10) as client:
            for name in NAMES:
                assert await client.project("demo").object("Named", name).read() == [["alarm", name], ["call", name]]
        for path in (home.root / "objects").rglob("*"):
            assert path.resolve().is_relative_to(home.root)
        assert len(list((home.root / "objects").glob("*/*"))) == len(NAMES) + (
            0 if not home.awake("Named", "asker") else 1
        )

    run(scenario, Named)


def test_slow_readers_hold_nothing(run):
    """Three clients read a large answer at a trickle: writes go on quickly meanwhile and the log is folded as ever
    (field case 6)."""

    async def scenario(home):
        async with home.http() as url:
            host, port = url.removeprefix("http://").split(":")
            for i in range(40):
                await home.call("Named", "a", "fill", i)
            readers = []
            for _ in range(3):
                reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
                writer.write(b"POST /v1/demo/objects/Named/a/all HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
                assert (await reader.read(100)).startswith(b"HTTP/1.1 200")
                readers.append((reader, writer))
            generation, slowest = home.residency("Named", "a").log.generation, 0.0
            for i in range(60):
                began = home.node.now()
                await home.call("Named", "a", "fill", 1000 + i)
                slowest = max(slowest, home.node.now() - began)
                for reader, _ in readers:
                    await reader.read(100)
            await home.landed("Named", "a")
            assert slowest < 10  # a reader that held something would hold it until the test is over
            assert home.residency("Named", "a").log.generation > generation
            for _, writer in readers:
                writer.close()

    run(scenario, Named, object_wal_rotate_kb=1024)


def test_a_slow_read_method_holds_its_object_and_no_rotation_for_ever(run):
    """Long reads beside many writes: reads hold the object as any call does, rotations come between them and the log
    stays bounded (field cases 6 and 7)."""

    class Slow(Named):
        @domicile.read
        def scan(self) -> int:
            numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)"
            return self.sql.one(f"{numbers} SELECT max(i) AS m FROM n")["m"]

    async def scenario(home):
        stop, longest = asyncio.Event(), 0

        async def reader():
            while not stop.is_set():
                assert await home.call("Slow", "a", "scan") == 30_000

        readers = [asyncio.create_task(reader()) for _ in range(3)]
        for i in range(40):
            await home.call("Slow", "a", "fill", i)
            longest = max(longest, home.residency("Slow", "a").log.length)
        stop.set()
        await asyncio.gather(*readers)
        assert home.residency("Slow", "a").log.generation.counter > 1
        assert longest < 4 << 20

    run(scenario, Slow, object_wal_rotate_kb=512)


def test_databases_over_http(run):
    """`Database`: exec, query, query_one, read, read_one, batch; blobs and large integers come back as they were,
    errors undo the statement, and all of it survives a cold restore."""

    async def scenario(home):
        async with home.http() as url, Client(url) as client:
            db = client.project("demo").database("catalog")
            await db.exec("CREATE TABLE items (id INTEGER PRIMARY KEY, b BLOB, n INTEGER)")
            assert await db.exec("INSERT INTO items VALUES (1, ?, ?)", [b"\0\xff", 2**63 - 1]) == {"rows_changed": 1}
            assert await db.query_one("SELECT * FROM items WHERE id = :id", {"id": 1}) == {
                "id": 1,
                "b": b"\0\xff",
                "n": 2**63 - 1,
            }
            rows = await db.batch(
                [
                    ("INSERT INTO items VALUES (2, NULL, 2) RETURNING id", None),
                    ("SELECT count(*) AS n FROM items", None),
                ]
            )
            assert rows == [[{"id": 2}], [{"n": 2}]]
            with contextlib.suppress(domicile.errors.SqlError):
                await db.batch([("DELETE FROM items", None), ("INSERT INTO nope VALUES (1)", None)])
                raise AssertionError
            with contextlib.suppress(domicile.errors.SqlRefused):
                await db.read("DELETE FROM items")
                raise AssertionError
            assert [row["id"] for row in await db.read("SELECT id FROM items ORDER BY id")] == [1, 2]
            assert await db.read_one("SELECT id FROM items WHERE id = 9") is None
        await home.restart(crash=True, cold=True)
        async with home.http() as url, Client(url) as client:
            db = client.project("demo").database("catalog")
            assert [row["id"] for row in await db.query("SELECT id FROM items ORDER BY id")] == [1, 2]

    run(scenario, domicile.Database)


def test_a_batch_is_in_order_within_an_object_and_each_its_own_transaction(run):
    """A batch answers each line, a failed one alone; lines of one object keep their order; keys count."""

    class Log(Object):
        def init(self):
            self.sql.exec("CREATE TABLE l (x)")

        def add(self, x: int) -> list[int]:
            if x < 0:
                raise ValueError("negative")
            self.sql.exec("INSERT INTO l VALUES (?)", x)
            return [r["x"] for r in self.sql.query("SELECT x FROM l ORDER BY rowid")]

    async def scenario(home):
        async with home.http() as url, Client(url) as client:
            project = client.project("demo")
            calls = [domicile.Call("Log", f"o{i % 3}", "add", [i if i != 6 else -1]) for i in range(12)]
            results = await project.batch(calls)
            assert [type(r).__name__ for r in results].count("MethodFailed") == 1
            assert results[11] == [2, 5, 8, 11]
            assert results[9] == [0, 3, 9]
            again = [domicile.Call("Log", "k", "add", [1], key="same") for _ in range(3)]
            assert await project.batch(again) == [[1], [1], [1]]

    run(scenario, Log)


def test_metrics_of_the_surface_do_not_name_objects(run):
    """A hundred names make no hundred series: labels are classes."""

    async def scenario(home):
        for i in range(20):
            await home.call("Named", f"secret{i}", "read")
        text = exposition(node_registry(home.telemetry)).decode()
        assert "secret" not in text
        assert 'class="Named"' in text

    run(scenario, Named)
