"""Rows, conditions and writes: what every provider of the placement store keeps, sentence by sentence (PROTOCOLS 2)."""

from __future__ import annotations

import asyncio

import pytest
from placement_providers import keys_of, put

from domicile.placement.store import (
    CONDITIONS_MAX,
    MUTATIONS_MAX,
    At,
    Committed,
    Conflict,
    Delete,
    Put,
    Record,
    Since,
    Store,
)

pytestmark = pytest.mark.anyio


async def test_read_gives_what_was_written_and_nothing_for_an_absent_key(store: Store) -> None:
    """A record is (key, value, version, created); an absent key is absent."""
    first = await put(store, "/a", b"1")
    second = await put(store, "/a", b"2")
    assert await store.read(["/a", "/b"]) == {"/a": Record("/a", b"2", second, first)}
    assert await store.read([]) == {}


async def test_values_are_any_bytes_and_keys_any_text_without_nul(store: Store) -> None:
    """Names are raw UTF-8: slashes, percent signs, spaces and emoji are distinct keys."""
    keys = ["/k/a", "/k/a/b", "/k/a%2Fb", "/k/ a", "/k/🏠", "/k/é", "/k/e\u0301", "/k/" + "x" * 255]
    for number, key in enumerate(keys):
        await put(store, key, bytes([number, 0, 255]))
    found = await store.read(keys)
    assert [found[key].value for key in keys] == [bytes([number, 0, 255]) for number in range(len(keys))]
    assert await keys_of(store, "/k/") == sorted(keys, key=str.encode)


async def test_versions_are_store_wide_and_strictly_grow(store: Store) -> None:
    """Every write of any key has a greater version than every one before it, deletions included."""
    versions = [await put(store, f"/{n % 3}") for n in range(6)]
    deletion = await store.write([], [Delete("/0")])
    assert isinstance(deletion, Committed)
    versions += [deletion.version, await put(store, "/0")]
    assert versions == sorted(set(versions))


async def test_all_rows_of_one_write_carry_its_version(store: Store) -> None:
    """The version that a write commits at is that of every row it wrote."""
    outcome = await store.write([], [Put("/a", b""), Put("/b", b"")])
    assert isinstance(outcome, Committed)
    found = await store.read(["/a", "/b"])
    assert {(record.version, record.created) for record in found.values()} == {(outcome.version, outcome.version)}


async def test_at_holds_only_at_exactly_that_version(store: Store) -> None:
    """`At` is a compare-and-swap on the key's version."""
    version = await put(store, "/a")
    assert isinstance(await store.write([At("/a", version)], [Put("/a", b"2")]), Committed)
    conflict = await store.write([At("/a", version)], [Put("/a", b"3")])
    assert isinstance(conflict, Conflict)
    assert conflict.current == await store.read(["/a"])


async def test_at_zero_means_absent(store: Store) -> None:
    """Version 0 is that of a key that is not there, also after it was deleted."""
    assert isinstance(await store.write([At("/a", 0)], [Put("/a", b"")]), Committed)
    assert isinstance(await store.write([At("/a", 0)], [Put("/a", b"")]), Conflict)
    await store.write([], [Delete("/a")])
    assert isinstance(await store.write([At("/a", 0)], [Put("/a", b"")]), Committed)


async def test_since_survives_rewrites_and_not_a_recreation(store: Store) -> None:
    """`Since` holds while the key has been there without a break since that version created it."""
    created = await put(store, "/a")
    await put(store, "/a")
    assert isinstance(await store.write([Since("/a", created)], [Put("/x", b"1")]), Committed)
    await store.write([], [Delete("/a")])
    assert isinstance(await store.write([Since("/a", created)], [Put("/x", b"2")]), Conflict)
    again = await put(store, "/a")
    assert isinstance(await store.write([Since("/a", created)], [Put("/x", b"3")]), Conflict)
    assert isinstance(await store.write([Since("/a", again)], [Put("/x", b"4")]), Committed)


async def test_a_conflict_names_all_conditions_keys_and_writes_nothing(store: Store) -> None:
    """All or nothing; what comes back is what the conditions' keys hold, None for absent."""
    here = await put(store, "/here")
    conflict = await store.write(
        [At("/here", here), At("/gone", 7), Since("/also-gone", 3)], [Put("/new", b""), Delete("/here")]
    )
    assert isinstance(conflict, Conflict)
    assert conflict.current == {"/here": (await store.read(["/here"]))["/here"], "/gone": None, "/also-gone": None}
    assert "/new" not in await store.read(["/new"])


async def test_a_write_that_changes_nothing_is_committed(store: Store) -> None:
    """Deleting what is not there is no error, and conditions may be checked alone."""
    version = await put(store, "/a")
    for mutations in ([], [Delete("/never")]):
        outcome = await store.write([At("/a", version)], mutations)
        assert isinstance(outcome, Committed)
        assert version <= outcome.version < await put(store, "/b")


async def test_writes_are_bounded_and_change_a_key_once(store: Store) -> None:
    """128 of each pass, one more is refused, and so is a key written twice or a text that is no key."""
    most = [Put(f"/{n}", b"") for n in range(MUTATIONS_MAX)]
    conditions = [At(f"/{n}", 0) for n in range(CONDITIONS_MAX)]
    assert isinstance(await store.write(conditions, most), Committed)
    for refused in ([*most, Put("/more", b"")], [Put("/a", b""), Delete("/a")], [Put("", b"")], [Put("/\0", b"")]):
        with pytest.raises(ValueError, match=r"write|key"):
            await store.write([], refused)
    with pytest.raises(ValueError, match="128"):
        await store.write([At("/a", 0)] * (CONDITIONS_MAX + 1), [])


async def test_of_concurrent_writers_exactly_one_wins(store: Store) -> None:
    """Writes on the same version are serialized, and every loser sees the winner's row."""
    for round_ in range(5):
        current = (await store.read(["/lock"])).get("/lock")
        version = current.version if current else 0
        outcomes = await asyncio.gather(
            *(store.write([At("/lock", version)], [Put("/lock", b"%d" % n)]) for n in range(20))
        )
        won = [(n, outcome) for n, outcome in enumerate(outcomes) if isinstance(outcome, Committed)]
        assert len(won) == 1, round_
        row = (await store.read(["/lock"]))["/lock"]
        assert (row.value, row.version) == (b"%d" % won[0][0], won[0][1].version)
        assert all(outcome.current == {"/lock": row} for outcome in outcomes if isinstance(outcome, Conflict))


async def test_a_read_sees_one_snapshot(store: Store) -> None:
    """Two keys that are always written together are always read together."""

    async def write() -> None:
        for n in range(50):
            await store.write([], [Put("/left", b"%d" % n), Put("/right", b"%d" % n)])

    writing = asyncio.ensure_future(write())
    while not writing.done():
        found = await store.read(["/left", "/right"])
        assert len({record.value for record in found.values()}) <= 1
        assert len(found) in (0, 2)
        await asyncio.sleep(0)
    await writing
