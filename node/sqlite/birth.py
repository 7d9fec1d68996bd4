"""The file every object starts from: one constant image, byte for byte, on every node and in every version.

A manifest without chunks stands for it (PROTOCOLS section 5, "Birth"), so it is part of the stored format: it holds
no randomness and no time, and it never changes. A later layout is a migration that runs over it, not another image.
"""

from __future__ import annotations

import base64
import zlib

import apsw

PAGE_SIZE = 4096
APPLICATION_ID = 0x444F4D49  # "DOMI", so that `file` and sqlite3 shells can name a copy found on a disk

SCHEMA = (
    # One fact of the object itself per row, such as that `init` has run.
    "CREATE TABLE _domicile_meta(key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL) WITHOUT ROWID",
    # `id` is arrival order, so that the oldest records are found without an index on their time.
    "CREATE TABLE _domicile_idempotency(id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, method TEXT NOT NULL,"
    " digest BLOB NOT NULL, answer BLOB NOT NULL, at_ms INTEGER NOT NULL)",
    # `failed`: given up; it stays to be seen and is never due.
    "CREATE TABLE _domicile_alarms(name TEXT PRIMARY KEY NOT NULL, due_ms INTEGER NOT NULL, payload BLOB, cron TEXT,"
    " attempts INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID",
    "CREATE INDEX _domicile_alarms_due ON _domicile_alarms(due_ms) WHERE failed = 0",
    "CREATE TABLE _domicile_migrations(name TEXT PRIMARY KEY NOT NULL, digest BLOB NOT NULL, at_ms INTEGER NOT NULL)"
    " WITHOUT ROWID",
    "CREATE TABLE _domicile_kv(key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL) WITHOUT ROWID",
)


def build() -> bytes:
    """Make the image from `SCHEMA`. Only a test calls it: what objects start from is `IMAGE`."""
    db = apsw.Connection(":memory:")
    db.execute(f"PRAGMA page_size={PAGE_SIZE}; PRAGMA encoding='UTF-8'; PRAGMA auto_vacuum=NONE").fetchall()
    db.execute(f"PRAGMA application_id={APPLICATION_ID}").fetchall()
    with db:
        for statement in SCHEMA:
            db.execute(statement)
    image = bytearray(db.serialize("main"))
    db.close()
    image[18:20] = b"\x02\x02"  # WAL mode, for writers and readers
    image[24:28] = image[92:96] = (1).to_bytes(4, "big")  # change counter, and the counter the page count is valid for
    image[96:100] = bytes(4)  # the SQLite that wrote it; nothing reads it
    return bytes(image)


_PACKED = (
    "eNrt2V1P01AYwPF2wEoUBK96+1xIsiUlQQ3hRhMHq9A4NpldgAtDKj1gw7riVsBdmeK9H8vPZTcZe2FVE+MN/n9Jk56X9jznyemSJ3u3VwliJS"
    "dRO/Riea4ta7mc9kpE0zQ9vea1oXx6zY609cFNubbraNP15ywuRZrx8Ju2dPXoxdKTxe2F7wuP0yYAAADwn0s0wzBXVvRkK/Y+NNWRH4XBcZDe"
    "nF2O3s9v1e2Sa4tb2qzYMjpSOFNdce0DV97Wnd1S/VDe2IdSrblSbVQqllx6zQslm5Xa5m1nUfYdd6fWcKVe23fKybO8Ya6v69fGRAhhcNr24i"
    "Bqdab1GRkhDWcUWl6ofhWbH5yqTjwenCVefBR2xKm69rZdzwr6y1wa86qeFIOWrz4PV/eaXjtM471Qk335m3idatk+kGlPSK16p7/Qe1PYSVff"
    "seu2nHjpkC8vZS1pzxrm6qr+1ZzI2uB94+25jGzdrPLbTPWjuJMUS869bjPy/H4OLTluR63+a3pZjFV4Ht99Rsr261Kj4sqaNdhO9pTJo6Jyhr"
    "mxoV8HE5sO/HSxKFat4+7UzpmM7Y9MKQTDQEaSYMntAb8Nr1F19hq2JaGKP0b++GDmqWp1rlT7D8+aM5M332/oWv9wdT4104L5yLuIo5+Hbfq2"
    "n07tnh2U1EleN8xiUU+2J78yFXvjrVzWl5WO/f3n/qAXzTK/vAAAAAAA3GeL1P8AAAAAANx7/P8PAAAAAAD1PwAAAAAAoP4HAAAAAADU/wAAAA"
    "AAgPofAAAAAAD8ez8AIeJ48g=="
)

IMAGE: bytes = zlib.decompress(base64.b64decode(_PACKED))
"""32 KiB: a SQLite file in WAL mode with the internal tables and nothing else."""
