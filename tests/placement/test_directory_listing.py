"""Listings of what is there and of what was deleted."""

from __future__ import annotations

from typing import Any

import pytest

from domicile.errors import BadRequest, NotServing
from domicile.placement.directory import Deletion, Directory, Instance
from domicile.placement.keys import Keys
from domicile.placement.records import DeletedRow, Epoch, InstanceRow, ObjectKey, encode
from domicile.placement.store import Committed, Put

pytestmark = pytest.mark.anyio


@pytest.fixture
async def directory(store: Any, keys: Keys) -> Directory:
    for scope, cls, name in (
        ("acme", "Auction", "lot/1"),
        ("acme", "Auction", "lot/2"),
        ("acme", "Auction", "other"),
        ("acme", "AuctionHouse", "lot/1"),
        ("acme-2", "Auction", "lot/1"),
    ):
        key = ObjectKey(scope, cls, name)
        await store.write([], [Put(keys.instance(key), encode(InstanceRow(key.id, 9)))])
    return Directory(store, keys)


def test_golden_rows() -> None:
    """Directory rows are stored: their JSON, byte for byte."""
    assert encode(InstanceRow("ab", 9)) == b'{"object_id":"ab","created_ms":9}'
    assert encode(DeletedRow("ab", Epoch(1, 2), 3)) == b'{"object_id":"ab","incarnation":[1,2],"term":3}'


async def names(directory: Directory, *args: Any) -> list[str]:
    return [f"{entry.key.cls}:{entry.key.name}" for entry in (await directory.instances(*args)).entries]


async def test_a_listing_is_by_scope_class_and_prefix(directory: Directory) -> None:
    """Nothing of a scope or a class whose name merely begins alike."""
    assert await names(directory, "acme") == [
        "Auction:lot/1",
        "Auction:lot/2",
        "Auction:other",
        "AuctionHouse:lot/1",
    ]
    assert await names(directory, "acme", "Auction") == ["Auction:lot/1", "Auction:lot/2", "Auction:other"]
    assert await names(directory, "acme", "Auction", "lot/") == ["Auction:lot/1", "Auction:lot/2"]
    assert await names(directory, "acme", None, "lot/1") == ["Auction:lot/1", "AuctionHouse:lot/1"]
    assert await names(directory, "nobody") == []
    entry = (await directory.instances("acme-2")).entries[0]
    assert entry == Instance(ObjectKey("acme-2", "Auction", "lot/1"), 9)


async def test_pages_go_on_by_token(directory: Directory) -> None:
    """All entries, each once, however small the pages."""
    found, token = [], None
    while True:
        page = await directory.instances("acme", token=token, limit=1)
        found += [entry.key for entry in page.entries]
        token = page.token
        if token is None:
            break
    assert found == [entry.key for entry in (await directory.instances("acme")).entries]


async def test_tokens_of_others_and_of_no_one_are_harmless(directory: Directory) -> None:
    """A made-up token is a bad request; another listing's shows nothing of that listing."""
    for token in ("nonsense", "1:x", "999999999999:/c/r/instances/acme/"):
        with pytest.raises(BadRequest):
            await directory.instances("acme", token=token)
    foreign = (await directory.instances("acme", limit=1)).token
    assert [entry.key.scope for entry in (await directory.instances("acme-2", token=foreign)).entries] in (
        [],
        ["acme-2"],
    )
    with pytest.raises(BadRequest):
        await directory.instances("acme", limit=5_000)


async def test_deletions_say_the_deletes_epoch(directory: Directory, store: Any, keys: Keys) -> None:
    """(term, version of the write), or what a copied row says if that is greater."""
    here, copied = ObjectKey("acme", "Auction", "a"), ObjectKey("acme", "Auction", "b")
    outcome = await store.write([], [Put(keys.deleted(here), encode(DeletedRow(here.id, Epoch(0, 0), 3)))])
    assert isinstance(outcome, Committed)
    await store.write([], [Put(keys.deleted(copied), encode(DeletedRow(copied.id, Epoch(3, 10**9), 3)))])
    assert (await directory.deletions("acme", "Auction")).entries == (
        Deletion(here, Epoch(3, outcome.version)),
        Deletion(copied, Epoch(3, 10**9)),
    )


async def test_a_store_that_is_away_is_not_serving(directory: Directory, store: Any) -> None:
    """The error is one that callers know."""
    await store.close()
    with pytest.raises(NotServing):
        await directory.instances("acme")
