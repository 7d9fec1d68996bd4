"""Which files an app is made of, and whether one has changed since the last look."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = (".py", ".sql", ".toml")
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
FILES_MAX = 5000


class Watch:
    """Files below one folder by their time and size. Hidden folders and FILES_MAX onwards are left out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._look()

    def changed(self) -> list[str]:
        """Paths, from the folder, that came, went or changed since the last call; sorted."""
        before, self._seen = self._seen, self._look()
        paths = before.keys() | self._seen.keys()
        return sorted(os.path.relpath(path, self._folder) for path in paths if before.get(path) != self._seen.get(path))

    def _look(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for path in self._files():
            try:
                stat = os.stat(path)
            except FileNotFoundError:
                continue
            found[path] = (stat.st_mtime_ns, stat.st_size)
            if len(found) == FILES_MAX:
                break
        return found

    def _files(self) -> Iterator[str]:
        for base, folders, files in os.walk(self._folder):
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
            yield from (os.path.join(base, name) for name in sorted(files) if name.endswith(SUFFIXES))


def folder_of(app: str) -> Path:
    """Where an app's files are: beside the file, in the package's folder, or here for a dotted name."""
    path = Path(app)
    if path.is_dir():
        return path.resolve()
    return path.resolve().parent if path.suffix == ".py" else Path.cwd()
