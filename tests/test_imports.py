"""Who may import whom: planes and layers by import-linter's contracts, drivers by the table here."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SERVER_PACKAGES = ("placement", "node", "workflows", "activities", "cli")

# One outside technology, one home. A driver is named by its import; the value says who may import it.
DRIVERS: dict[str, tuple[str, ...]] = {
    "aetcd": ("placement/etcd",),
    "aioboto3": ("node/blobs/s3.py",),
    "aiobotocore": ("node/blobs/s3.py",),
    "botocore": ("node/blobs/s3.py",),
    "temporalio": ("workflows/", "activities/", "cli/", "node/operations.py"),
    "typer": ("cli/",),
    "rich": ("cli/",),
    "starlette": ("node/app.py", "node/http/", "node/main.py"),
    "uvicorn": ("node/http/", "node/serving.py", "node/main.py"),
    "uvloop": ("node/main.py",),
    "sqlite3": (),
    "requests": (),
    "boto3": (),
}


def modules(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from (path for path in sorted((ROOT / folder).rglob("*.py")))


def imports(path: Path, *, top_level_only: bool = False) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import, those for type checkers only left out."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in tree.body if top_level_only else ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{name.name}") for name in node.names)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages as one folder of links, since import-linter looks for `domicile.node` below `domicile`."""
    base = tmp_path_factory.mktemp("tree")
    package = base / "domicile"
    package.mkdir()
    for entry in (ROOT / "sdk").iterdir():
        if entry.name != "__pycache__":
            (package / entry.name).symlink_to(entry)
    for name in SERVER_PACKAGES:
        (package / name).symlink_to(ROOT / name)
    return base


def test_contracts_hold(tree: Path) -> None:
    """Planes and layers keep to the contracts in pyproject.toml, and every module of the node has its place in one."""
    linted = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", ROOT / "pyproject.toml"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_contracts_can_fail(tree: Path, tmp_path: Path) -> None:
    """A module that reaches up is found: the contract test is able to fail."""
    copy = tmp_path / "domicile"
    copy.mkdir()
    for entry in (tree / "domicile").iterdir():
        if entry.name != "placement":
            (copy / entry.name).symlink_to(entry.resolve())
    (copy / "placement").mkdir()
    for entry in (ROOT / "placement").iterdir():
        (copy / "placement" / entry.name).symlink_to(entry)
    (copy / "placement" / "reaches_up.py").write_text("import domicile.node.values\n")
    linted = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", ROOT / "pyproject.toml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert linted.returncode != 0
    assert "reaches_up" in linted.stdout


@pytest.mark.parametrize("driver", DRIVERS)
def test_driver_has_one_home(driver: str) -> None:
    """Only the adapter named in the table imports the driver."""
    homes = DRIVERS[driver]
    strays = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules("sdk", *SERVER_PACKAGES)
        for line, name in imports(path)
        if within(name, driver) and not str(path.relative_to(ROOT)).startswith(homes or ("nobody",))
    ]
    assert not strays, f"{driver} belongs in {homes or 'no module'}"


def test_sdk_imports_no_server_at_import_time() -> None:
    """No module of the library loads the placement or node packages; `testing` does so when it is used."""
    names = [path.stem for path in sorted((ROOT / "sdk").glob("*.py")) if path.stem not in ("__init__", "testing")]
    assert "object" in names
    code = f"import sys, domicile, {', '.join(f'domicile.{name}' for name in names)}; print(*sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    servers = [name for name in found if any(within(name, f"domicile.{package}") for package in SERVER_PACKAGES)]
    assert not servers


def test_workflows_import_nothing_but_values() -> None:
    """Workflow modules hold decisions only: dataclasses, typing, Temporal (whose loop asyncio's is), and each other."""
    values = ("__future__", "asyncio", "collections.abc", "dataclasses", "datetime", "enum", "typing")
    allowed = (*values, "temporalio", "domicile.workflows")
    strays = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in modules("workflows")
        for line, name in imports(path)
        if not any(within(name, package) for package in allowed)
    ]
    assert not strays


def test_no_module_but_its_own_package_reads_private_names() -> None:
    """No module imports a name with a leading underscore from another module."""
    strays = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in modules("sdk", *SERVER_PACKAGES)
        for line, name in imports(path)
        if within(name, "domicile") and any(part.startswith("_") and part != "__version__" for part in name.split("."))
    ]
    assert not strays
