"""The twins pass the conformance suites of the real providers, test by test, in a calm world."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
import random
from pathlib import Path

import pytest
from simworld.blobs import SimBlobs
from simworld.loop import SimLoop
from simworld.store import SimStore

from domicile.placement.store import Put

CONTRACT = Path(__file__).parent.parent / "contract"


def suite(paths, fixtures):
    """The modules' tests that need nothing but these fixtures."""
    tests = {}
    for path in sorted(paths):
        spec = importlib.util.spec_from_file_location(f"contract_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found = {key: test for key, test in vars(module).items() if key.startswith("test_") and callable(test)}
        assert found, path
        assert not tests.keys() & found.keys(), path
        tests |= found
    return {key: test for key, test in tests.items() if set(inspect.signature(test).parameters) <= fixtures}


STORE_TESTS = suite((CONTRACT / "placement").glob("test_*.py"), {"store", "provider"})
BLOB_TESTS = suite([CONTRACT / "test_blobs.py"], {"run"})


class Provider:
    """What the placement suite needs beside the store."""

    def __init__(self, server):
        self.server = server

    async def open(self):
        return self.server.session()

    async def advance(self, secs):
        await asyncio.sleep(secs)

    async def compact(self, store):
        await store.write([], [Put("/compaction", b"")])
        self.server.compact()


@pytest.mark.parametrize("name", sorted(STORE_TESTS))
def test_the_placement_twin_conforms(name):
    """The store's suite, on virtual time."""
    test = STORE_TESTS[name]
    loop = SimLoop(name)

    async def main():
        provider = Provider(SimStore(loop, random.Random(1)))
        async with contextlib.AsyncExitStack() as stack:
            store = await provider.open()
            stack.push_async_callback(store.close)
            have = {"store": store, "provider": provider}
            await test(**{wanted: have[wanted] for wanted in inspect.signature(test).parameters})

    try:
        loop.run(main())
    finally:
        loop.end()


@pytest.mark.parametrize("name", sorted(BLOB_TESTS))
def test_the_blob_twin_conforms(name):
    """The blob store's suite, on virtual time."""
    loop = SimLoop(name)
    blobs = SimBlobs(loop, random.Random(1))
    try:
        BLOB_TESTS[name](run=lambda scenario: loop.run(scenario(blobs)))
    finally:
        loop.end()
