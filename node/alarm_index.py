"""Which objects of this node have alarms, and when the earliest is due: kept beside them for one moment (section 9).

At boot the node offers these rows to the mirror, in case the placement store lost them. A line a change, the last of an
object counts; nothing is synced, since a lost line costs at most what the object's own storage still knows when it
wakes.
"""

from __future__ import annotations

import msgspec

from domicile.node.disk import Disk
from domicile.placement.records import AlarmRow, Incarnation, ObjectKey

COMPACT_LINES = 10_000


class _Line(msgspec.Struct, array_like=True):
    scope: str
    cls: str
    name: str
    incarnation: Incarnation
    due_ms: int | None


class AlarmIndex:
    """A file of one data directory, opened once a run."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._due: dict[ObjectKey, _Line] = {}
        self._size = self._lines = 0
        self._load()

    def rows(self) -> list[AlarmRow]:
        """What to offer at boot."""
        return [
            AlarmRow(line.scope, line.cls, line.name, line.incarnation, line.due_ms)
            for line in self._due.values()
            if line.due_ms is not None
        ]

    def note(self, key: ObjectKey, incarnation: Incarnation, due_ms: int | None) -> None:
        """The earliest alarm of `key` is due then; None: it has none any more. Raises OSError."""
        known = self._due.get(key)
        if (known.due_ms if known else None) == due_ms:
            return
        line = _Line(key.scope, key.cls, key.name, incarnation, due_ms)
        if due_ms is None:
            self._due.pop(key, None)
        else:
            self._due[key] = line
        if self._lines > COMPACT_LINES and self._lines > 4 * len(self._due):
            self._rewrite()
        else:
            self._append(line)

    def _append(self, line: _Line) -> None:
        data = msgspec.json.encode(line) + b"\n"
        self._disk.write_at(self._path, self._size, data)
        self._size += len(data)
        self._lines += 1

    def _rewrite(self) -> None:
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in self._due.values())
        self._disk.replace(self._path, data, sync=False)
        self._size, self._lines = len(data), len(self._due)

    def _load(self) -> None:
        try:
            data = self._disk.read(self._path)
        except FileNotFoundError:
            return
        for text in data.split(b"\n"):
            try:
                line = msgspec.json.decode(text, type=_Line)
            except msgspec.MsgspecError:
                continue  # the torn end of a crash, or nothing at all
            key = ObjectKey(line.scope, line.cls, line.name)
            if line.due_ms is None:
                self._due.pop(key, None)
            else:
                self._due[key] = line
        self._rewrite()
