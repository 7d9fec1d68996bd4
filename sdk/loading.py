"""Import an app by file or dotted name, and leave nothing behind if it fails."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import traceback
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from domicile.errors import BadApp, Problem


def import_app(app: str, root: Path) -> tuple[ModuleType, str]:
    """The app's module, executed anew, and its name as the app's author knows it.

    `app` is the path of a `.py` file or of a package's folder, or a dotted name; both are looked up under `root`. The
    directory the app is imported from stays on `sys.path` when it worked, for imports made later. Raises BadApp.
    """
    name, folder, file = _locate(app, root)
    with _all_or_nothing(folder, app):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        if file is not None and _taken(name, file):
            return _execute(f"{name}_{zlib.crc32(str(file).encode()):08x}", file), name
        sys.modules.pop(name, None)
        return importlib.import_module(name), name


def class_lines(file: str) -> dict[str, list[int]]:
    """Lines of the classes a file defines at its top level, by name: more than one where a name is used again."""
    lines: dict[str, list[int]] = {}
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return lines
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            lines.setdefault(node.name, []).append(node.lineno)
    return lines


def _locate(app: str, root: Path) -> tuple[str, Path, Path | None]:
    """Module name, folder to import from, and the file if the app was given as a path."""
    path = root / app
    if not (app.endswith(".py") or "/" in app or path.is_dir()):
        if not all(part.isidentifier() for part in app.split(".")):
            raise BadApp([Problem(app, 0, "", "neither a .py file nor the dotted name of a module")])
        return app, root.resolve(), None
    path = path.resolve()
    file = path / "__init__.py" if path.is_dir() else path
    if not file.is_file():
        raise BadApp([Problem(app, 0, "", "there is no such file")])
    parts, folder = ([path.name], path.parent) if path.is_dir() else ([path.stem], path.parent)
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if bad := [part for part in parts if not part.isidentifier()]:
        raise BadApp([Problem(app, 0, "", f"{bad[0]!r} cannot be the name of a Python module")])
    return ".".join(parts), folder, file


def _taken(name: str, file: Path) -> bool:
    """Whether importing `name` would give, or hide, another module than the one in `file`."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        return Path(getattr(loaded, "__file__", None) or "/").resolve() != file
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and Path(spec.origin or "/").resolve() != file


def _execute(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def _all_or_nothing(folder: Path, app: str) -> Iterator[None]:
    modules, path = dict(sys.modules), list(sys.path)
    try:
        yield
    except (Exception, SystemExit) as error:
        # Whatever an app raises while it is imported, it is the app that is bad.
        _forget(folder, modules)
        sys.path[:] = path
        raise BadApp([_why(error, folder, app)]) from error


def _forget(folder: Path, before: dict[str, ModuleType]) -> None:
    """Put modules of the app's own folder back to what they were; libraries it imported are whole and stay."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if before.get(name) is not module and file and _within(file, folder):
            del sys.modules[name]
    for name, module in before.items():
        sys.modules.setdefault(name, module)


def _why(error: BaseException, folder: Path, app: str) -> Problem:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        return Problem(_shown(error.filename, folder), error.lineno or 0, "", f"{type(error).__name__}: {error.msg}")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _within(f.filename, folder)]
    if not frames:
        return Problem(app, 0, "", text)
    return Problem(_shown(frames[-1].filename, folder), frames[-1].lineno or 0, "", text)


def _within(file: str, folder: Path) -> bool:
    path = Path(file)
    return path.is_relative_to(folder) and "site-packages" not in path.parts


def _shown(file: str, folder: Path) -> str:
    path = Path(file)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else file
