"""What type checkers say about code that uses the SDK: right code passes, every wrong line is found."""

import re
from pathlib import Path

import pytest

import domicile

USES = """
from datetime import UTC, datetime
from typing import Any
import domicile
from domicile import Alarm, Client, Object, Region, SyncClient

class Lot(Object):
    migrations = "migrations/lot"
    placement = Region("eu-west")
    idle_secs = 300

    def __init__(self) -> None:
        self.memory: dict[str, int] = {}

    def bid(self, user: str, amount: int) -> dict[str, Any]:
        row = self.sql.one("SELECT 1 AS n", user)
        self.set_alarm("10m", payload={"n": 1})
        self.set_alarm(cron="0 3 * * *", name="nightly")
        self.set_alarm(datetime.now(UTC))
        with self.sql.tx():
            self.kv.put("a", [1])
        other: int = self.object(Lot, "x").bid("a", 1)
        row["n"]  # ERROR: a row may be None
        self.set_alarm(object())  # ERROR
        self.set_alarm(1, nme="x")  # ERROR
        self.object(3, "x")  # ERROR
        self.now() + "x"  # ERROR
        self.sql.exec(3)  # ERROR
        return {"due": [alarm.due_ms for alarm in self.alarms()], "other": other}

    @domicile.read
    def look(self, deep: bool = False) -> int:
        return self.now()

    def also(self) -> int:
        self.look(deep="x")  # ERROR: a marked method keeps its types
        return self.look(deep=True)

    async def on_wake(self) -> None: ...
    def on_alarm(self) -> None: ...

class Other(Object):
    placement = "eu"  # ERROR
    async def on_alarm(self, alarm: Alarm) -> None: ...

@domicile.cron("0 3 * * *", name="nightly")
def sweep() -> int:
    return 3

swept: str = sweep()  # ERROR

async def outside() -> None:
    async with Client("http://node", token="t") as client:
        await client.project("acme").object(Lot, "x").bid("ada", 25)
        await client.project("acme").database("catalog").exec("SELECT 1", [1])
        infos = [info.name async for info in client.project("acme").objects()]
        infos + 3  # ERROR
        client.project("acme").database("c").read("SELECT 1") + []  # ERROR: not awaited
        client.project(3)  # ERROR
    Client(tokn="t")  # ERROR

def blocking(client: SyncClient) -> list[dict[str, Any]]:
    client.project("acme").object(3, "x")  # ERROR
    client.project("acme").object("Lot", "x").options(kee="x")  # ERROR
    return client.project("acme").database("c").read("SELECT 1", {"a": 1})
"""


def test_types(tmp_path, monkeypatch):
    """Exactly the lines marked so are errors under mypy's strict rules."""
    api = pytest.importorskip("mypy.api")
    (tmp_path / "stubs").mkdir()
    (tmp_path / "stubs" / "domicile").symlink_to(Path(domicile.__file__).parent)
    (tmp_path / "uses.py").write_text(USES)
    (tmp_path / "mypy.ini").write_text("[mypy]\n")
    monkeypatch.setenv("MYPYPATH", str(tmp_path / "stubs"))
    monkeypatch.chdir(tmp_path)

    said, _, _ = api.run(["--strict", "--config-file=mypy.ini", "--follow-imports=silent", "uses.py"])

    wrong = {number for number, line in enumerate(USES.splitlines(), 1) if "# ERROR" in line}
    assert {int(number) for number in re.findall(r"^uses\.py:(\d+): error", said, re.MULTILINE)} == wrong, said
