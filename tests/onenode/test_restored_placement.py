"""A placement store put back from a backup: claims are refused, until `doctor --new-term` has drawn new terms."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from domicile import Object
from domicile.cli.new_term import terms_of
from domicile.errors import NotServing
from domicile.placement import ledger
from domicile.placement.embedded import EmbeddedStore
from domicile.placement.keys import Keys
from domicile.placement.new_term import NewTerm, Renewed

MOVES = 5


class Tally(Object):
    def add(self) -> int:
        self.kv.put("n", self.kv.get("n", 0) + 1)
        return int(self.kv.get("n"))

    def seen(self) -> int:
        return int(self.kv.get("n", 0))


def put_back(backup: Path, placement: Path) -> None:
    for file in placement.parent.glob("placement.db*"):
        file.unlink()
    shutil.copy(backup, placement)


async def buried(home: Any, name: str) -> bool:
    return bool((await home.manifest("Tally", name)).deleted)


async def new_term(home: Any) -> Renewed:
    """As the command does it, the node standing still."""
    terms, rotten = await terms_of(home.bucket.quiet)
    store = EmbeddedStore(str(home.root / "placement.db"), time.monotonic)
    (done,) = await NewTerm(store, store, Keys("domicile", "local")).renew(terms)
    await store.close()
    assert rotten == []
    return done


def test_a_restored_placement_store_needs_a_new_term(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its versions start below the manifests' epochs. After the new term everything answered is there, and what the
    store had lost of rows is found by the bucket."""
    monkeypatch.setattr(ledger, "VERSIONS_SKIPPED_AT_OPEN", 0)  # etcd skips none

    async def scenario(home: Any) -> None:
        placement, backup = home.root / "placement.db", home.root / "backup.db"
        assert await home.call("Tally", "a", "add") == 1
        await home.stop()
        shutil.copy(placement, backup)
        await home.start()
        for n in range(MOVES):
            assert await home.call("Tally", "a", "add") == 2 + n
            await home.sleep_object("Tally", "a")
        assert await home.call("Tally", "later", "add") == 1
        await home.stop()
        put_back(backup, placement)

        await home.start()
        with pytest.raises(NotServing, match="exceeds"):
            await home.call("Tally", "a", "add")
        await home.stop()
        done = await new_term(home)
        assert (done.project, done.term, done.rewritten) == ("demo", 2, 1)

        await home.start()
        assert await home.call("Tally", "a", "add") == 2 + MOVES
        assert await home.call("Tally", "later", "add") == 2

    run(scenario, Tally)


def test_lives_that_the_restored_store_does_not_know(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleted and born again since the backup, or deleted only: the bucket's life rules, and lives go on from there."""
    monkeypatch.setattr(ledger, "VERSIONS_SKIPPED_AT_OPEN", 0)

    async def scenario(home: Any) -> None:
        placement, backup = home.root / "placement.db", home.root / "backup.db"
        for name in ("reborn", "gone", "asleep"):
            for _ in range(3):
                await home.call("Tally", name, "add")
        await home.stop()
        shutil.copy(placement, backup)
        await home.start()
        epochs = {}
        for name in ("reborn", "gone", "asleep", "unheard"):
            await home.call("Tally", name, "add")
            epochs[name] = await home.node.delete(home.key("Tally", name), None, None)
        for name in ("reborn", "asleep"):
            assert await home.call("Tally", name, "add") == 1
        await home.sleep_object("Tally", "asleep")
        for name in ("gone", "unheard"):
            await home.until(lambda name=name: buried(home, name), f"{name} is buried")
        await home.stop()
        put_back(backup, placement)
        await new_term(home)

        await home.start()
        assert await home.call("Tally", "reborn", "add") == 2
        assert await home.call("Tally", "asleep", "add") == 2
        assert await home.call("Tally", "gone", "add") == 1
        assert await home.call("Tally", "unheard", "add") == 1
        assert {name: home.residency("Tally", name).incarnation for name in epochs} == epochs
        await home.restart(crash=True)
        assert await home.call("Tally", "gone", "add") == 2
        assert await home.node.delete(home.key("Tally", "reborn"), None, None) > epochs["reborn"]
        assert await home.call("Tally", "reborn", "add") == 1

    run(scenario, Tally)


def test_a_release_of_before_the_backup_is_not_taken_for_the_last(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that fits the restored row is here, as where an object slept before it woke on another node: in a new
    term it is not taken on the row's word."""
    monkeypatch.setattr(ledger, "VERSIONS_SKIPPED_AT_OPEN", 0)

    async def scenario(home: Any) -> None:
        placement, backup = home.root / "placement.db", home.root / "backup.db"
        await home.call("Tally", "a", "add")
        await home.stop()
        shutil.copy(placement, backup)
        shutil.copytree(home.root / "objects", home.root / "slept")
        await home.start()
        for n in range(MOVES):
            assert await home.call("Tally", "a", "add") == 2 + n
        await home.stop()
        put_back(backup, placement)
        shutil.rmtree(home.root / "objects")
        (home.root / "slept").rename(home.root / "objects")
        await new_term(home)
        await home.start()
        assert await home.call("Tally", "a", "seen") == 1 + MOVES
        assert await home.call("Tally", "a", "add") == 2 + MOVES

    run(scenario, Tally)


def test_the_command_says_what_it_did(run: Callable[..., Any], capsys: Any) -> None:
    """One row a project: the term before and now, and how many gates have it."""

    async def scenario(home: Any) -> None:
        await home.call("Tally", "a", "add")

    home = run(scenario, Tally)
    from domicile.cli import new_term
    from domicile.cli.output import Output

    new_term.run({"DOMICILE_DATA": str(home.root)}, Output(as_json=True))
    assert '"project": "demo", "before": 1, "term": 2, "gates": 1' in capsys.readouterr().out
