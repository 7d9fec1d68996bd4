"""workerd, the runtime of Cloudflare's Durable Objects, with its SQLite storage on local disk."""

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.cache import cache_dir
from bench.peers.base import HttpPeer
from bench.process import BenchError

VERSION = "1.20261117.1"
_BUILDS = {"x86_64": "workerd-linux-64", "aarch64": "workerd-linux-arm64"}


class Workerd(HttpPeer):
    """The npm package `workerd`, its binary called directly."""

    name = "workerd"
    title = "workerd, SQLite Durable Object on local disk"
    answer_means = "one fsync of the object's own WAL per increment, before the answer; one copy on one disk"

    def __init__(self) -> None:
        self._binary = Path()

    def prepare(self) -> None:
        build = _BUILDS.get(platform.machine())
        if build is None:
            raise BenchError(f"there is no workerd for {platform.machine()}")
        home = cache_dir() / f"workerd-{VERSION}"
        self._binary = home / "node_modules" / "@cloudflare" / build / "bin" / "workerd"
        if self._binary.exists():
            return
        if shutil.which("npm") is None:
            raise BenchError("npm is needed to install it, and is not here")
        print(f"installing workerd {VERSION} into {home}", flush=True)
        home.mkdir(parents=True, exist_ok=True)
        install = ["npm", "install", "--prefix", str(home), "--no-audit", "--no-fund", "--ignore-scripts"]
        npm = subprocess.run([*install, f"workerd@{VERSION}"], capture_output=True, text=True)
        if npm.returncode or not self._binary.exists():
            raise BenchError(f"npm could not install it: {npm.stderr.strip()[-300:]}")

    def versions(self) -> dict[str, str]:
        return {"workerd": VERSION}

    def command(self, port: int, data: Path) -> Sequence[str]:
        config = Path(__file__).resolve().parent.parent / "servers" / "workerd.capnp"
        return [
            *(str(self._binary), "serve", str(config)),
            *(f"--socket-addr=http=127.0.0.1:{port}", f"--directory-path=disk={data}"),
        ]

    def path(self, name: str, method: str, ballast: bool = False) -> str:
        return f"/{name}/{method}"
