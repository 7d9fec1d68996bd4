"""Objects with rows of blobs, and what shows that they are whole and the same."""

from __future__ import annotations

import domicile
from domicile import Object


class Rows(Object):
    """`t` has them: an id and a blob each."""

    def init(self):
        self.sql.exec("CREATE TABLE t (id INTEGER PRIMARY KEY, b BLOB)")

    @domicile.read
    def digest(self) -> str:
        return (
            self.sql.one("SELECT group_concat(id || ':' || hex(substr(b, 1, 8)) || length(b)) AS d FROM t")["d"] or ""
        )

    @domicile.read
    def check(self) -> str:
        return self.sql.one("PRAGMA integrity_check")["integrity_check"]
