"""Pages of a scan of the embedded store: the rows of now, with what changed since the snapshot taken back."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from domicile.placement.store import SCAN_BYTES_MAX, Page, Record


def read_token(token: str) -> tuple[int, str]:
    """(snapshot, last key given out). Raises ValueError."""
    version, colon, after = token.partition(":")
    if not colon or not version.isdecimal() or len(version) > 19:
        raise ValueError("this is no scan token")
    return int(version), after


def at_snapshot(
    rows: Iterator[Any], prefix: str, past: dict[str, Record | None], start: str, beyond: bool
) -> Iterator[Record]:
    """The rows as they were: those of now that did not change since, merged with the earlier state of those that did.

    Text compares by code point here and by UTF-8 bytes in SQLite: the same order.
    """
    gone = sorted(
        (record for record in past.values() if record and (record.key > start or not beyond)), key=lambda r: r.key
    )
    return heapq.merge(_live(rows, prefix, past), gone, key=lambda record: record.key)


def _live(rows: Iterator[Any], prefix: str, past: dict[str, Record | None]) -> Iterator[Record]:
    for row in rows:
        record = Record(*row)
        if not record.key.startswith(prefix):
            return
        if record.key not in past:
            yield record


def page(records: Iterator[Record], snapshot: int, limit: int) -> Page:
    """The first `limit` of `records`, fewer when they come to 4 MiB; never none while there are some."""
    records_here: list[Record] = []
    size = 0
    for record in records:
        size += len(record.key) + len(record.value)
        if records_here and (len(records_here) == limit or size > SCAN_BYTES_MAX):
            return Page(tuple(records_here), snapshot, f"{snapshot}:{records_here[-1].key}")
        records_here.append(record)
    return Page(tuple(records_here), snapshot, None)
