"""`domicile doctor --new-term`: after the placement store of a region was put back from a backup."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
from collections import defaultdict
from collections.abc import Mapping

from domicile.cli import settings
from domicile.cli.failures import CliError, Exit
from domicile.cli.output import Output
from domicile.errors import BadName
from domicile.node import manifest as manifests
from domicile.node.blobs.base import Blobs
from domicile.node.blobs.opening import open_blobs
from domicile.node.chunks import MANIFESTS
from domicile.node.clock import SystemClock
from domicile.node.config import Config
from domicile.node.errors import BlobError, BlobMissing, Corrupt
from domicile.placement.keys import Keys
from domicile.placement.new_term import NewTerm, Renewed
from domicile.placement.open import open_store
from domicile.placement.store import ScanExpired, StoreUnavailable

GETS_AT_ONCE = 32


def run(environ: Mapping[str, str], output: Output) -> None:
    """Reads all manifests of the region's blob store, then prints a line a project. Raises CliError."""
    config = settings.loaded(environ).config
    output.say("reading what the blob store has of each project ...")
    try:
        renewed, rotten = asyncio.run(_renew(config))
    except (StoreUnavailable, ScanExpired) as error:
        raise CliError(
            f"the placement store did not take it: {error}",
            Exit.RETRYABLE,
            "run it again: nothing is lost by terms drawn twice; an embedded store is open to one process at a time",
        ) from error
    except (BlobError, OSError, ValueError, BadName) as error:
        raise CliError(f"{type(error).__name__}: {error}", Exit.FAILED, "no gate was rewritten") from error
    output.rows([_row(one) for one in renewed], ["project", "before", "term", "gates", "note"], "there are no projects")
    if rotten:
        raise CliError(f"{len(rotten)} manifests cannot be read: {', '.join(rotten[:8])}", Exit.FAILED)


def _row(one: Renewed) -> dict[str, object]:
    notes = [f"closed {key}: its home is another region" for key in one.closed]
    if one.shut:
        notes.append("its gate here is closed although this is its home: a move was under way, or the store is older")
    return {
        "project": one.project,
        "before": one.before,
        "term": one.term,
        "gates": one.rewritten,
        "note": "; ".join(notes),
    }


async def _renew(config: Config) -> tuple[list[Renewed], list[str]]:
    """What was done, and the keys of manifests that are rotten."""
    clock = SystemClock()
    blobs = await open_blobs(config, clock, random.Random(os.urandom(16)))
    try:
        terms, rotten = await terms_of(blobs)
    finally:
        await blobs.close()
    store = control = open_store(config, clock.monotonic, clock.sleep)
    try:
        if config.control not in ("", config.placement):
            control = open_store(dataclasses.replace(config, placement=config.control), clock.monotonic, clock.sleep)
        new_term = NewTerm(store, control, Keys(config.cluster, config.region))
        for project, term in (await new_term.seen()).items():
            terms[project] = max(terms[project], term)
        return await new_term.renew(terms), rotten
    finally:
        if control is not store:
            await control.close()
        await store.close()


async def terms_of(blobs: Blobs) -> tuple[defaultdict[str, int], list[str]]:
    """The highest term of each project among a store's manifests, and the keys of those that do not read."""
    terms: defaultdict[str, int] = defaultdict(int)
    rotten: list[str] = []

    async def look(key: str) -> None:
        try:
            found = manifests.decode((await blobs.get(key)).data, key)
        except BlobMissing:
            return
        except Corrupt:
            rotten.append(key)
            return
        terms[found.scope] = max(terms[found.scope], found.epoch.term)

    keys: list[str] = []
    async for listed in blobs.list(MANIFESTS):
        keys.append(listed.key)
        if len(keys) == GETS_AT_ONCE:
            await asyncio.gather(*map(look, keys))
            keys.clear()
    await asyncio.gather(*map(look, keys))
    return terms, rotten
