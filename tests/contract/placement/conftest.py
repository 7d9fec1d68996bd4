"""A store of each provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from placement_providers import PROVIDERS, Provider

from domicile.placement.store import (
    Store,
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=sorted(PROVIDERS))
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> Provider:
    return PROVIDERS[request.param](request, tmp_path)


@pytest.fixture
async def store(provider: Provider) -> AsyncIterator[Store]:
    store = await provider.open()
    yield store
    await store.close()
