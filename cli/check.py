"""`domicile check`: load an app as a node would, try its migrations on an empty database, and serve nothing."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import apsw

from domicile.classes import ClassSpec
from domicile.cli.failures import CliError, Exit
from domicile.cli.output import Output
from domicile.errors import BadApp, Problem
from domicile.loading import class_lines
from domicile.node.sqlite.authorizer import Authorizer
from domicile.registry import Registry, load


def run(app: str, regions: tuple[str, ...], output: Output) -> None:
    """Prints the classes when all is well. Raises CliError with every problem found: file, line, class, what."""
    problems, registry = examine(app, regions)
    if problems or registry is None:
        raise CliError(
            f"{app} cannot be served:\n    " + "\n    ".join(map(str, problems)),
            Exit.FAILED,
            problem={"problems": [{"file": p.file, "line": p.line, "class": p.cls, "text": p.text} for p in problems]},
        )
    classes = [
        {
            "class": spec.name,
            "methods": ", ".join(sorted(spec.methods)),
            "migrations": len(spec.migrations),
            "region": spec.placement.name if spec.placement else None,
        }
        for spec in registry.classes.values()
    ]
    output.rows(classes, ["class", "methods", "migrations", "region"], "no classes")


def examine(app: str, regions: tuple[str, ...] = ()) -> tuple[list[Problem], Registry | None]:
    """Everything wrong with the app, and its registry if it loads. Pins are held against `regions` if given."""
    try:
        registry = load(app, root=Path.cwd())
    except BadApp as error:
        return error.problems, None
    problems = [problem for spec in registry.classes.values() for problem in _migrations(spec)]
    problems += [
        _at(spec, f"pinned to region {spec.placement.name!r}; known are {', '.join(regions)}")
        for spec in registry.classes.values()
        if regions and spec.placement and spec.placement.name not in regions
    ]
    return problems, registry


def _at(spec: ClassSpec, text: str) -> Problem:
    """Of a class as a whole: where it is written."""
    file = inspect.getfile(spec.type)
    return Problem(Path(file).name, class_lines(file).get(spec.name, [0])[-1], spec.name, text)


def _migrations(spec: ClassSpec) -> Iterator[Problem]:
    """Runs them in order on an empty database, under the rules an object's SQL is under; stops at the first bad one."""
    authorizer = Authorizer()
    database = apsw.Connection(":memory:")
    database.set_authorizer(authorizer)
    try:
        for migration in spec.migrations:
            try:
                database.execute(migration.sql).fetchall()
            except apsw.Error as error:
                yield Problem(f"{spec.type.migrations}/{migration.name}", 0, spec.name, authorizer.take() or str(error))
                return
    finally:
        database.close()
