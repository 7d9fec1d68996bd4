"""The object that the world's clients use: its answers show all it holds, so that a history can be judged."""

from __future__ import annotations

import asyncio
from typing import Any

from domicile import marks
from domicile.context import Alarm
from domicile.object import Object

FILLER_BYTES = 600


class Ledger(Object):
    """Items in order, and a counter in a table of its own; a filler makes the log grow, so that it rotates."""

    def init(self) -> None:
        self.sql.exec("CREATE TABLE items(n INTEGER PRIMARY KEY, item TEXT NOT NULL, filler BLOB)")
        self.sql.exec("CREATE TABLE counter(value INTEGER NOT NULL)")
        self.sql.exec("INSERT INTO counter VALUES (0)")

    def append(self, item: str) -> dict[str, Any]:
        self._put(item)
        return self._all()

    async def append_slowly(self, item: str) -> dict[str, Any]:
        self._put(item)
        await asyncio.sleep(0.02)
        return self._all()

    async def relay(self, item: str, to: str) -> dict[str, Any]:
        """Have another ledger append `item`, and tell it what stands last here."""
        last = self.sql.one("SELECT item FROM items ORDER BY n DESC LIMIT 1")
        told = f"{item}|{self.name}|{plain(last['item'])}" if last else item
        answer: dict[str, Any] = await self.object("Ledger", to).append(told)
        return answer

    def arm(self, item: str, secs: float, failures: int) -> dict[str, Any]:
        """Have `item` appended in a while, by a handler that fails at first."""
        self.set_alarm(secs, item, {"failures": failures})
        return self._all()

    def on_alarm(self, alarm: Alarm) -> None:
        self._put(alarm.name)
        if alarm.attempts < alarm.payload["failures"]:
            raise RuntimeError("not yet")

    def increment(self, item: str) -> dict[str, Any]:
        self._put(item)
        self.sql.exec("UPDATE counter SET value = value + 1")
        (counter,) = self.sql.query("SELECT value FROM counter")
        return {**self._all(), "value": counter["value"]}

    def read(self) -> dict[str, Any]:
        return self._all()

    @marks.read
    def peek(self) -> dict[str, Any]:
        return self._all()

    def _put(self, item: str) -> None:
        self.sql.exec("INSERT INTO items(item, filler) VALUES (?, zeroblob(?))", item, FILLER_BYTES)

    def _all(self) -> dict[str, Any]:
        return {"items": [row["item"] for row in self.sql.query("SELECT item FROM items ORDER BY n")]}


def plain(item: str) -> str:
    """The item without what it was told beside it."""
    return item.split("|", 1)[0]
