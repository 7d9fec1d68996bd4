"""Regions: registered, found, and stood in for while nobody has registered them."""

from __future__ import annotations

from typing import Any

import pytest

from domicile.errors import BadName, NotServing
from domicile.placement.keys import ControlKeys
from domicile.placement.records import RegionRow, StandinRow, encode
from domicile.placement.regions import Regions
from domicile.placement.store import StoreUnavailable

pytestmark = pytest.mark.anyio

A = RegionRow("a", "h:1", "http://h:2", "etcd://h:3", "file:/x", "", 9)


@pytest.fixture
def make(store: Any, clock: Any) -> Any:
    """As another process sees them: nothing remembered."""
    return lambda: Regions(store, ControlKeys("c"), clock.sleep)


def test_golden_region_rows() -> None:
    """Regions and stand-ins are stored: their JSON, byte for byte, and the keys they are under."""
    assert encode(A) == (
        b'{"name":"a","ingress":"h:1","http":"http://h:2","placement":"etcd://h:3","blobs":"file:/x","since_ms":9}'
    )
    assert encode(StandinRow("a")) == b'{"region":"a"}'
    keys = ControlKeys("c")
    assert (keys.region("a"), keys.standin("b")) == ("/c/control/regions/a", "/c/control/standins/b")
    assert (keys.region_of(keys.region("a")), keys.standin_of(keys.standin("b"))) == ("a", "b")


async def test_a_region_is_registered_once_and_corrected(make: Any, store: Any) -> None:
    """Registering again writes only what is new, keeps the first time, and an ingress that is not said again."""
    regions = make()
    await regions.register(A)
    writes = store.writes
    assert await make().register(RegionRow("a", "", "", "etcd://h:3", "file:/x", "", 50)) == A
    assert store.writes == writes
    changed = await make().register(RegionRow("a", "h:7", "", "etcd://h:8", "file:/x", "", 60))
    assert changed == RegionRow("a", "h:7", "http://h:2", "etcd://h:8", "file:/x", "", 9)
    assert await regions.get("a") == changed
    assert await regions.list() == {"a": changed}
    with pytest.raises(BadName):
        await regions.register(RegionRow("control"))


async def test_one_region_stands_in_for_one_that_is_not_there(make: Any) -> None:
    """Whoever lands first stands in, all others go by it, and so they do once the region is registered."""
    assert await make().place("mars", "b") == "b"
    assert await make().place("mars", "a") == "b"
    mars = make()
    await mars.register(RegionRow("mars"))
    assert await mars.place("mars", "mars") == "b"
    assert await make().place("mars", "a") == "b"


async def test_a_registered_region_needs_no_standin(make: Any) -> None:
    """A registered region takes what is its own, whoever asks, and keeps it."""
    await make().register(A)
    assert await make().place("a", "b") == "a"
    assert (await make().place("a", "a"), make().placed("a")) == ("a", None)


async def test_a_standin_written_while_the_region_registers_is_seen_by_it(make: Any, store: Any) -> None:
    """Registration and stand-in race: whichever is first, both sides go by the same region."""
    other = make()
    store.before_write = lambda: other.place("mars", "b")
    mars = make()
    await mars.register(RegionRow("mars"))
    assert await mars.place("mars", "mars") == await other.place("mars", "b") == "b"


async def test_regions_stay_known_while_control_is_away(make: Any, store: Any) -> None:
    """What was seen, or kept from an earlier run, is used; what was never seen is not served."""
    regions = make()
    regions.remember({"a": A}, {"mars": "a"})
    store.down = True
    assert (await regions.place("a", "b"), await regions.place("mars", "b")) == ("a", "a")
    with pytest.raises(NotServing):
        await regions.place("venus", "b")
    with pytest.raises(StoreUnavailable):
        await regions.register(RegionRow("venus"))
