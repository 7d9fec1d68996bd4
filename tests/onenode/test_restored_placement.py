"""A placement store put back from a backup: claims are refused, until `doctor --new-term` has drawn new terms."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest

from domicile import Object
from domicile.cli.new_term import terms_of
from domicile.errors import NotServing
from domicile.placement import ledger
from domicile.placement.embedded import EmbeddedStore
from domicile.placement.keys import Keys
from domicile.placement.new_term import NewTerm

MOVES = 5


class Tally(Object):
    def add(self) -> int:
        self.kv.put("n", self.kv.get("n", 0) + 1)
        return int(self.kv.get("n"))


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
        for file in home.root.glob("placement.db*"):
            file.unlink()
        shutil.copy(backup, placement)

        await home.start()
        with pytest.raises(NotServing, match="exceeds"):
            await home.call("Tally", "a", "add")
        await home.stop()
        terms, rotten = await terms_of(home.bucket.quiet)
        store = EmbeddedStore(str(placement), time.monotonic)
        (done,) = await NewTerm(store, store, Keys("domicile", "local")).renew(terms)
        await store.close()
        assert (done.project, done.term, done.rewritten, rotten) == ("demo", 2, 1, [])

        await home.start()
        assert await home.call("Tally", "a", "add") == 2 + MOVES
        assert await home.call("Tally", "later", "add") == 2

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
