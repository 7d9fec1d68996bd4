"""What `domicile doctor` asks of the servers a node goes by: etcd, of the region and of control, and Temporal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from domicile.cli.findings import Finding
from domicile.errors import NotServing
from domicile.node.clock import SystemClock
from domicile.node.config import Config
from domicile.node.operations import Operations
from domicile.placement.open import SQLITE, open_store
from domicile.placement.store import At, Delete, PlacementError

ANSWER_SECS = 5.0


def servers(config: Config) -> Iterator[Finding]:
    """One finding each; none for an embedded store, which is a file of the data directory, and where none is named."""
    if not config.placement.startswith(SQLITE):
        yield asyncio.run(_placement("placement store", "PLACEMENT", config))
    if config.control not in ("", config.placement) and not config.control.startswith(SQLITE):
        yield asyncio.run(_placement("control keyspace", "CONTROL", replace(config, placement=config.control)))
    if config.temporal:
        yield asyncio.run(_temporal(config))


async def _placement(check: str, setting: str, config: Config) -> Finding:
    """Asks for a write below the cluster's prefix that cannot take place: it wants what a node wants, and leaves
    nothing."""
    key, where = f"/{config.cluster}/doctor", config.placement
    fix = f"see {setting}, and PLACEMENT_… for its TLS and login; is etcd running there, and reached from here?"
    clock = SystemClock()
    try:
        store = open_store(config, clock.monotonic, clock.sleep)
        try:
            async with asyncio.timeout(ANSWER_SECS):
                await store.write([At(key, 1)], [Delete(key)])
        finally:
            await store.close()
    except TimeoutError:
        return Finding(check, "broken", f"{where}: no answer within {ANSWER_SECS:g} s", fix)
    except (PlacementError, OSError, ValueError) as error:
        return Finding(check, "broken", f"{where}: {error}", fix)
    return Finding(check, "ok", f"{where} takes writes")


async def _temporal(config: Config) -> Finding:
    """A node serves without it, so its absence is a warning."""
    try:
        async with asyncio.timeout(ANSWER_SECS):
            await Operations(config).check()
    except TimeoutError:
        found = f"{config.temporal}: no answer within {ANSWER_SECS:g} s"
    except NotServing as error:
        found = error.detail
    else:
        return Finding("Temporal", "ok", f"{config.temporal} has namespace {config.temporal_namespace}")
    fix = "see TEMPORAL and TEMPORAL_NAMESPACE; until it answers objects are served and operations are not"
    return Finding("Temporal", "warning", found, fix)
