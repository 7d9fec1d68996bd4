"""The application of the drills: an object that shows, with every answer, all it holds."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import domicile

PADDING_ROWS = 24


class Probe(domicile.Object):
    """A list that only grows, kept three times over: whatever of a call lasts must last whole."""

    def init(self) -> None:
        self.sql.exec("CREATE TABLE items (n INTEGER PRIMARY KEY, item TEXT NOT NULL)")
        self.sql.exec("CREATE TABLE twins (n INTEGER PRIMARY KEY, item TEXT NOT NULL)")
        self.sql.exec("CREATE TABLE fired (n INTEGER PRIMARY KEY, item TEXT NOT NULL)")
        self.sql.exec("CREATE TABLE padding (n INTEGER PRIMARY KEY, bytes BLOB NOT NULL)")

    def append(self, item: str, padding: int = 0) -> dict[str, Any]:
        """Add `item` behind all the others, and some bytes that make the log grow."""
        self.sql.exec("INSERT INTO items (item) VALUES (?)", item)
        if padding:
            self.sql.exec("INSERT INTO padding (bytes) VALUES (randomblob(?))", padding)
            self.sql.exec("DELETE FROM padding WHERE n <= (SELECT max(n) FROM padding) - ?", PADDING_ROWS)
        self.kv.put("last", item)
        self.sql.exec("INSERT INTO twins (item) VALUES (?)", item)
        return self.read()

    def arm(self, item: str, secs: float) -> dict[str, Any]:
        """The same, and an alarm by its name."""
        self.set_alarm(secs, name=item)
        return self.append(item)

    def linger(self, item: str, secs: float) -> dict[str, Any]:
        """The same, and keep the object busy for a while."""
        shown = self.append(item)
        time.sleep(secs)
        return shown

    async def block(self, item: str, secs: float) -> dict[str, Any]:
        """The same, and let the node's event loop stand still."""
        shown = self.append(item)
        time.sleep(secs)
        return shown

    def hold(self, item: str, secs: float) -> dict[str, Any]:
        """The same, and keep the interpreter lock, so that nothing of the process runs."""
        shown = self.append(item)
        ctypes.PyDLL(None).sleep(int(secs))
        return shown

    def on_alarm(self, alarm: domicile.Alarm) -> None:
        self.sql.exec("INSERT INTO fired (item) VALUES (?)", alarm.name)

    @domicile.read
    def read(self) -> dict[str, Any]:
        """Everything in the object, oldest first."""
        return {"items": [row["item"] for row in self.sql.query("SELECT item FROM items ORDER BY n")]}

    @domicile.read
    def fired(self) -> list[str]:
        """The names of the alarms that came, in their order."""
        return [row["item"] for row in self.sql.query("SELECT item FROM fired ORDER BY n")]
