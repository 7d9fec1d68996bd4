"""Many objects on one node: what sleeping ones cost on disk, what awake ones cost in memory.

DOMICILE_SLEEPING: how many sleep.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import pytest

from domicile import Object

SLEEPING = int(os.environ.get("DOMICILE_SLEEPING", "10000"))
AWAKE = 1000


class Small(Object):
    def init(self):
        self.sql.exec("CREATE TABLE t (id INTEGER PRIMARY KEY, x TEXT)")

    def put(self, x: str) -> int:
        self.sql.exec("INSERT INTO t (x) VALUES (?)", x)
        return self.sql.one("SELECT count(*) AS n FROM t")["n"]


async def put_each(home, names, at_once=64):
    iterator = iter(names)

    async def some():
        for name in iterator:
            await home.call("Small", name, "put", "x")

    await asyncio.gather(*(some() for _ in range(at_once)))


@pytest.mark.timeout(120 + SLEEPING // 20)
def test_sleeping_objects_cost_their_files_and_a_row(run):
    """Thousands of sleeping objects: three small files each, nothing held open, no memory but what is remembered of
    their rows, and any of them wakes at once."""

    async def scenario(home):
        await put_each(home, (f"o{i}" for i in range(SLEEPING)))
        await home.until(lambda: len(home.node._residents) <= 100, "the surplus sleeps")
        held = sum(1 for fd in os.listdir("/proc/self/fd") if is_object(home, fd))
        assert held <= 3 * 100 + 64
        files = [path for path in (home.root / "objects").rglob("*") if path.is_file()]
        assert len(files) <= 3 * SLEEPING
        assert sum(path.stat().st_size for path in files) < SLEEPING * 64 * 1024
        assert sum(path.stat().st_size for path in home.root.glob("placement.db*")) < SLEEPING * 4096 + (8 << 20)
        listed, token = 0, None
        while True:
            page = await home.node.list_objects("demo", "Small", "", token)
            listed, token = listed + len(page["objects"]), page["token"]
            if token is None:
                break
        assert listed == SLEEPING
        for i in range(0, SLEEPING, 97):
            assert await home.call("Small", f"o{i}", "put", "y") == 2

    run(scenario, Small, object_residents=100)


def is_object(home, fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(str(home.root / "objects"))
    except OSError:
        return False


MEASURE = """
import asyncio, importlib.util, json, pathlib, sys, tempfile
sys.path[:0] = [{here!r}, {kit!r}]
spec = importlib.util.spec_from_file_location("onenode_conftest", {here!r} + "/conftest.py")
conftest = importlib.util.module_from_spec(spec)
sys.modules["onenode_conftest"] = conftest
spec.loader.exec_module(conftest)
from domicile import Object
from domicile.node.sqlite.setup import configure_sqlite

class Small(Object):
    def init(self):
        self.sql.exec("CREATE TABLE t (id INTEGER PRIMARY KEY, x TEXT)")

    def put(self, x: str) -> int:
        self.sql.exec("INSERT INTO t (x) VALUES (?)", x)
        return self.sql.one("SELECT count(*) AS n FROM t")["n"]

def pss_kib():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Pss_Anon:"):  # code is shared with whoever else runs at the time
            return int(line.split()[1])

async def main(root):
    pathlib.Path(root).mkdir()
    home = conftest.Home(pathlib.Path(root), (Small,), {{}})
    configure_sqlite(root)
    await home.start()
    for i in range(20):
        await home.call("Small", f"warm{{i}}", "put", "x")
    before = pss_kib()
    names = iter([f"o{{i}}" for i in range({awake})])
    async def some():
        for name in names:
            for x in ("x", "y"):
                await home.call("Small", name, "put", x)
    await asyncio.gather(*(some() for _ in range(32)))
    after = pss_kib()
    print(json.dumps({{"awake": len(home.node._residents), "before": before, "after": after}}))
    await home.stop()
    await home.bucket.close()

asyncio.run(main(sys.argv[1]))
"""


def test_an_awake_object_costs_less_than_300_kib(tmp_path):
    """Memory of a process with hundreds of objects awake, beyond the same process without them."""
    here = os.path.dirname(__file__)
    kit = os.path.join(os.path.dirname(here), "kit")
    script = tmp_path / "measure.py"
    script.write_text(MEASURE.format(here=here, kit=kit, awake=AWAKE))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "data")], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    measured = json.loads(done.stdout.splitlines()[-1])
    assert measured["awake"] == AWAKE + 20
    each = (measured["after"] - measured["before"]) / AWAKE
    print(f"{each:.0f} KiB an awake object")
    assert each < 300
