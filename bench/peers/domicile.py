"""Domicile itself: one node with embedded stores, as `domicile dev` runs it."""

import importlib.metadata
import importlib.util
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.peers.base import HttpPeer
from bench.process import BenchError

_LIBRARIES = ("domicile", "starlette", "uvicorn", "uvloop", "httptools", "apsw", "msgspec")


class Domicile(HttpPeer):
    """The node of this repository, in the interpreter that runs the benchmarks."""

    name = "domicile"
    title = "Domicile, one node"
    answer_means = (
        "the blob store's manifest names the write; with one node there are no replicas, and the store is a directory"
        " on the same disk"
    )
    restores_from_store = True

    def prepare(self) -> None:
        try:
            there = importlib.util.find_spec("domicile.cli.main") is not None
        except ModuleNotFoundError:
            there = False
        if not there:
            raise BenchError(f"{sys.executable} has no `domicile.cli.main`; install the repository into it")

    def versions(self) -> dict[str, str]:
        return {package: importlib.metadata.version(package) for package in _LIBRARIES}

    def environment(self, data: Path) -> Mapping[str, str]:
        """Defaults throughout, but for room above the 64 MiB database of the wake cases."""
        return {"DOMICILE_OBJECT_DB_MAX_MB": "128"}

    def command(self, port: int, data: Path) -> Sequence[str]:
        app = Path(__file__).resolve().parent.parent / "app.py"
        return [sys.executable, "-m", "domicile.cli.main", "dev", str(app), "--port", str(port), "--data", str(data)]

    def path(self, name: str, method: str, ballast: bool = False) -> str:
        return f"/v1/bench/objects/{'Ballast' if ballast else 'Counter'}/{name}/{method}"

    def lose_local_files(self, data: Path) -> None:
        shutil.rmtree(data / "objects")
        shutil.rmtree(data / "cache", ignore_errors=True)  # chunks it has seen: they would spare it the store
