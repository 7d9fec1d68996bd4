"""Can every manifest ever stored be restored, from the blobs alone, as they were when it was current?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import apsw
from blake3 import blake3

from domicile.node.chunks import chunk_key, segment_key
from domicile.node.errors import Corrupt
from domicile.node.manifest import Manifest, decode
from domicile.node.sqlite import birth
from domicile.node.sqlite.checksum import checksum
from domicile.node.sqlite.wal import fold
from simworld.blobs import Moment
from simworld.checker import Violation

WHOLE_EVERY = 8


def check_moments(moments: Iterable[Moment]) -> list[Violation]:
    """Names, hashes and checksums of every one; SQLite's own integrity check of the last and of every eighth."""
    found = []
    listed = list(moments)
    for i, moment in enumerate(listed):
        whole = i % WHOLE_EVERY == 0 or i == len(listed) - 1
        try:
            wrong = _wrong(moment, whole=whole)
        except Corrupt as error:
            wrong = str(error)
        if wrong:
            found.append(Violation("unrestorable", moment.key, f"at {moment.at:.3f}: {wrong}"))
    return found


def restore(manifest: Manifest, store: Mapping[str, bytes]) -> bytes:
    """The database a manifest names. Raises Corrupt, saying what is not there or not itself."""
    refs = [(chunk_key(manifest.object_id, manifest.incarnation, ref), ref.hash) for ref in manifest.base]
    base = b"".join(_fetch(store, key, digest) for key, digest in refs) if refs else birth.IMAGE
    if refs and len(base) != manifest.base_size:
        raise Corrupt(f"the base has {len(base)} bytes, not {manifest.base_size}")
    pieces = [(segment_key(manifest.object_id, manifest.incarnation, piece), piece) for piece in manifest.segments]
    log = b"".join(_fetch(store, key, piece.hash) for key, piece in pieces) + manifest.tail_log
    if len(log) != manifest.length or checksum(manifest.seed, log) != manifest.checksum:
        raise Corrupt(f"the log of {len(log)} bytes is not the one of {manifest.length} the manifest means")
    return fold(base, log)


def integrity(image: bytes) -> str:
    """What SQLite says of a database: "ok", or what is wrong."""
    plain = bytearray(image)
    plain[18:20] = b"\x01\x01"  # a database in memory has no WAL
    db = apsw.Connection(":memory:")
    try:
        db.deserialize("main", bytes(plain))
        return "; ".join(str(row[0]) for row in db.execute("pragma integrity_check").fetchall())
    except apsw.Error as error:
        return str(error)
    finally:
        db.close()


def _wrong(moment: Moment, *, whole: bool) -> str:
    manifest = decode(moment.data, moment.key)
    if manifest.deleted:
        return ""
    image = restore(manifest, moment.store)
    said = integrity(image) if whole else "ok"
    return "" if said == "ok" else f"integrity_check: {said}"


def _fetch(store: Mapping[str, bytes], key: str, digest: bytes) -> bytes:
    data = store.get(key)
    if data is None:
        raise Corrupt(f"{key} is not in the store")
    if blake3(data).digest() != digest:
        raise Corrupt(f"{key} does not have the hash it is named by")
    return data
