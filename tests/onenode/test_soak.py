"""A dense soak: a mixed workload with every kind of stop in between, and a restore that agrees each time."""

from __future__ import annotations

import random

import pytest

import domicile
from domicile import Object
from domicile.node.chunks import MANIFESTS

SCHEMA = """
CREATE TABLE plain (id INTEGER PRIMARY KEY, a TEXT NOT NULL, b INTEGER, c REAL);
CREATE INDEX by_a ON plain (a);
CREATE INDEX by_b ON plain (b, c);
CREATE UNIQUE INDEX by_ab ON plain (a, id);
CREATE TABLE named (name TEXT PRIMARY KEY, owner INTEGER REFERENCES plain (id) ON DELETE CASCADE) WITHOUT ROWID;
CREATE TABLE uniq (t TEXT UNIQUE);
CREATE VIRTUAL TABLE words USING fts5(body);
"""


class Soak(Object):
    def init(self):
        self.sql.exec(SCHEMA)

    def mix(self, seed: int, many: int) -> int:
        luck = random.Random(seed)
        for _ in range(many):
            i, kind = luck.randrange(300), luck.random()
            text = f"{luck.choice(['ash', 'oak', 'elm', 'yew'])} {luck.getrandbits(40):x}"
            if kind < 0.5:
                sql = "INSERT INTO plain VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET a = excluded.a, b = b + 1"
                self.sql.exec(sql, i, text, luck.randrange(50), luck.random())
                self.sql.exec("INSERT OR REPLACE INTO named SELECT ?, id FROM plain WHERE id = ?", text[:5], i)
            elif kind < 0.6:
                self.sql.exec("DELETE FROM plain WHERE id = ?", i)
            elif kind < 0.75:
                self.sql.exec("INSERT OR IGNORE INTO uniq VALUES (?)", text[:6])
            elif kind < 0.95:
                self.sql.exec("INSERT INTO words VALUES (?)", text * 20)
            else:
                self.sql.exec("DELETE FROM words WHERE rowid IN (SELECT rowid FROM words ORDER BY rowid LIMIT 5)")
        return many

    def verify(self) -> dict:
        self.sql.exec("INSERT INTO words(words) VALUES ('integrity-check')")
        return {
            "integrity": self.sql.one("PRAGMA integrity_check")["integrity_check"],
            "foreign": self.sql.query("PRAGMA foreign_key_check"),
        }

    @domicile.read
    def digest(self) -> dict:
        counts = {t: self.sql.query(f"SELECT * FROM {t} ORDER BY 1") for t in ("plain", "named", "uniq")}
        words = self.sql.query("SELECT rowid, body FROM words ORDER BY rowid")
        oak = self.sql.one("SELECT count(*) AS n FROM words WHERE words MATCH 'oak'")["n"]
        return {"tables": {t: hash_of(rows) for t, rows in counts.items()}, "words": hash_of(words), "oak": oak}


def hash_of(rows):
    return [len(rows), sum(len(str(row)) for row in rows), hash_text(str(rows))]


def hash_text(text):
    total = 0
    for char in text:
        total = (total * 1_000_003 + ord(char)) % (1 << 61)
    return total


@pytest.mark.parametrize("seed", [17, 1117])
def test_a_mixed_workload_survives_every_kind_of_stop(run, seed):
    """Indexes, WITHOUT ROWID, foreign keys and FTS5 under sleep, restart, crash and cold restore: each time every
    check passes and nothing differs; what came back was really restored (field case 17)."""

    async def scenario(home):
        luck, restores = random.Random(seed), 0
        for step in range(24):
            for _ in range(luck.randrange(1, 6)):
                await home.call("Soak", "a", "mix", luck.getrandbits(30), luck.randrange(1, 60))
            before = await home.call("Soak", "a", "digest")
            fault = ("sleep", "crash", "cold", "restart", "landed", "cold")[step % 6]
            if fault == "sleep":
                await home.sleep_object("Soak", "a")
            elif fault == "landed":
                await home.landed("Soak", "a")
            else:
                await home.restart(crash=fault != "restart", cold=fault == "cold")
                restores += fault == "cold"
            assert await home.call("Soak", "a", "digest") == before, fault
            assert await home.call("Soak", "a", "verify") == {"integrity": "ok", "foreign": []}
            await home.landed("Soak", "a")
            await home.manifest("Soak", "a")
        assert restores == 8
        assert home.residency("Soak", "a").log.base.size > 0, "there were rotations"

    run(scenario, Soak, object_wal_rotate_kb=256)


def test_a_rotten_chunk_is_named_and_not_used(run):
    """A base chunk whose bytes have changed in the store is reported, never served (field case 17)."""

    async def scenario(home):
        for i in range(40):
            await home.call("Soak", "a", "mix", i, 60)
        leg = await home.landed("Soak", "a")
        assert leg.manifest.base
        await home.crash()
        home.wipe()
        chunk = next(key for key in reversed(home.bucket.puts) if "-" not in key and not key.startswith(MANIFESTS))
        data = bytearray((await home.bucket.quiet.get(chunk)).data)
        data[len(data) // 2] ^= 1
        await home.bucket.quiet.delete(chunk)
        await home.bucket.quiet.put(chunk, bytes(data))
        await home.start()
        with pytest.raises(domicile.errors.NotServing, match=chunk):
            await home.call("Soak", "a", "digest")
        data[len(data) // 2] ^= 1
        await home.bucket.quiet.delete(chunk)
        await home.bucket.quiet.put(chunk, bytes(data))
        assert await home.call("Soak", "a", "verify") == {"integrity": "ok", "foreign": []}

    run(scenario, Soak, object_wal_rotate_kb=64)
