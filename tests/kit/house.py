"""What the project is made of: its packages, files and functions, for tests of its style and its documents."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("sdk", "placement", "node", "workflows", "activities", "cli")
SOURCES = (*PACKAGES, "examples", "bench")
IMPORT_NAME = {"sdk": "domicile", **{name: f"domicile.{name}" for name in PACKAGES[1:]}}


def source_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from (path for path in sorted((ROOT / folder).rglob("*.py")) if "results" not in path.parts)


def text_files() -> Iterator[Path]:
    """Everything a person wrote: code, documents, scripts."""
    yield from source_files(*SOURCES, "tests")
    for pattern in ("*.md", "docs/**/*.md", "*/DESIGN.md", "*/README.md", "Makefile", ".ci/*", "pyproject.toml"):
        yield from (path for path in sorted(ROOT.glob(pattern)) if path.is_file())
    yield from (path for path in sorted((ROOT / "deploy").rglob("*")) if path.is_file())


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=named(path))


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its dotted name, inner ones too."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + child.name, child
                yield from walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.")
            else:
                yield from walk(child, prefix)

    yield from walk(tree, "")


def import_name(path: Path) -> str:
    package, *rest = path.relative_to(ROOT).with_suffix("").parts
    return ".".join((IMPORT_NAME[package], *rest))
