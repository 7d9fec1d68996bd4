"""Make the small worlds importable by the tests beside them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if (here := str(Path(__file__).parent)) not in sys.path:
    sys.path.insert(0, here)

from smallworlds.catalog import forget


@pytest.fixture
def wrong_code(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """To put a mistake into the product for one search: what the product answered before is not remembered."""
    forget()
    yield monkeypatch
    monkeypatch.undo()
    forget()
