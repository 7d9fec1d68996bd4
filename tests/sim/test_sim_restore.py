"""The restorer: what a manifest names comes back whole, and anything missing or changed is noticed."""

from __future__ import annotations

import apsw
import pytest
from blake3 import blake3
from simworld.blobs import Moment
from simworld.restore import check_moments, integrity, restore

from domicile.node import manifest
from domicile.node.chunks import Base, Segment, chunk_key, chunks_of, hash_chunks, manifest_key, next_refs, segment_key
from domicile.node.sqlite import birth
from domicile.node.sqlite.checksum import checksum
from domicile.node.sqlite.wal import CHUNK_BYTES
from domicile.placement.records import FIRST_INCARNATION, Birth, Epoch, Generation, ObjectKey

KEY = ObjectKey("acme", "Ledger", "one")
E = Epoch(1, 5)


@pytest.fixture
def stored(tmp_path):
    """A manifest over a base of two chunks with one segment and a tail, in a store made by hand, and its rows."""
    path = str(tmp_path / "a.db")
    (tmp_path / "a.db").write_bytes(birth.IMAGE)
    db = apsw.Connection(path)
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    db.execute("pragma locking_mode=exclusive; pragma wal_autocheckpoint=0").fetchall()
    db.execute("create table t(x); insert into t values(randomblob(1200000))")
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    image = (tmp_path / "a.db").read_bytes()
    db.execute("insert into t values('segment')")
    cut = (tmp_path / "a.db-wal").stat().st_size
    db.execute("insert into t values('tail')")
    log = (tmp_path / "a.db-wal").read_bytes()
    db.close()
    hashes = hash_chunks(lambda at, size: image[at : at + size], len(image))
    generation = Generation(E, 1)
    refs = next_refs([hashes[n] for n in range(chunks_of(len(image)))], (), generation)
    segment = Segment(E, generation, 0, cut, blake3(log[:cut]).digest())
    born = manifest.birth(KEY, FIRST_INCARNATION, E, Birth())
    base = Base(KEY.id, FIRST_INCARNATION, refs, len(image))
    seeded = manifest.rotated(born, manifest.Stamp(E, b"p" * 16), manifest.Reach(generation, 0, 0, b"0" * 16), base)
    reach = manifest.Reach(generation, 0, len(log), checksum(seeded.seed, log))
    whole = manifest.extended(seeded, manifest.Stamp(E, b"q" * 16), reach, segment=segment, tail=log[cut:])
    store = {
        chunk_key(KEY.id, FIRST_INCARNATION, ref): image[n * CHUNK_BYTES :][:CHUNK_BYTES] for n, ref in enumerate(refs)
    }
    store[segment_key(KEY.id, FIRST_INCARNATION, segment)] = log[:cut]
    store[manifest_key(KEY.id)] = manifest.encode(whole)
    return whole, store


def moment(whole, store):
    return Moment(1.0, manifest_key(KEY.id), manifest.encode(whole), store)


def test_a_manifest_is_restored_from_the_blobs_alone(stored):
    """Chunks, segment and tail make the whole database, and SQLite finds nothing wrong with it."""
    whole, store = stored
    image = bytearray(restore(whole, store))
    image[18:20] = b"\x01\x01"
    db = apsw.Connection(":memory:")
    db.deserialize("main", bytes(image))

    assert [row[0] for row in db.execute("select x from t where rowid > 1").fetchall()] == ["segment", "tail"]
    assert check_moments([moment(whole, store)]) == []


def test_whatever_is_missing_or_changed_is_found(stored):
    """Each key the manifest names, gone or with one bit turned, is a violation; so is a broken manifest."""
    whole, store = stored
    for key in set(store) - {manifest_key(KEY.id)}:
        gone = {name: data for name, data in store.items() if name != key}
        assert [v.kind for v in check_moments([moment(whole, gone)])] == ["unrestorable"]
        turned = {**store, key: bytes([store[key][0] ^ 1]) + store[key][1:]}
        assert [v.kind for v in check_moments([moment(whole, turned)])] == ["unrestorable"]
    broken = Moment(1.0, "k", b"DOMM nonsense", store)
    assert [v.kind for v in check_moments([broken])] == ["unrestorable"]


def test_integrity_names_what_is_wrong():
    """A damaged page is SQLite's own finding."""
    image = bytearray(birth.IMAGE)
    image[4096:4196] = b"\xff" * 100

    assert integrity(birth.IMAGE) == "ok"
    assert integrity(bytes(image)) != "ok"
