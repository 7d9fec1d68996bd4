"""An app's classes, as the platform serves them: `load` reads an app once and finds everything that is wrong with it.

A class that cannot serve is an error when the app is loaded, never when it is called.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from domicile.classes import ClassSpec, build_class
from domicile.database import Database
from domicile.errors import BadApp, NoSuchClass, Problem
from domicile.loading import class_lines, import_app
from domicile.marks import CRON_MARK
from domicile.object import Object
from domicile.schedule import Cron, CronSpec, cron_class
from domicile.signature import required

SCRIPT_RE = re.compile(r"[A-Za-z0-9_.-]{1,100}")
PLATFORM: tuple[type[Object], ...] = (Database,)
_RESERVED = frozenset({Cron.__name__, *(cls.__name__ for cls in PLATFORM)})


@dataclass(frozen=True, slots=True)
class Registry:
    """What one app serves. `script` is the scope of its schedules, without the `s.`; with any, `Cron` is served too."""

    app: str
    script: str
    classes: Mapping[str, ClassSpec]
    crons: tuple[CronSpec, ...]

    def find(self, cls: str) -> ClassSpec:
        """Raises NoSuchClass."""
        spec = self.classes.get(cls)
        if spec is None:
            raise NoSuchClass(f"the app has no class {cls!r}; it has {', '.join(sorted(self.classes))}")
        return spec


def load(app: str, *, script: str | None = None, root: str | Path = ".") -> Registry:
    """Import an app, a `.py` file, a package's folder or a dotted name, and check every class in it.

    Served are the public subclasses of `Object` that the module defines or imports, and the platform's own. Paths and
    dotted names are looked up under `root`. Raises BadApp with every problem found.
    """
    module, name = import_app(app, Path(root))
    problems: list[Problem] = []
    crons = tuple(_crons(module, problems))
    classes = {spec.name: spec for spec in (*_classes(module, problems), *_schedules(crons, problems))}
    script = script or name
    if not SCRIPT_RE.fullmatch(script):
        problems.append(Problem(_file(module), 0, "", f"{script!r} is no script id: [A-Za-z0-9_.-]{{1,100}}"))
    if problems:
        raise BadApp(sorted(problems, key=lambda problem: (problem.file, problem.line)))
    return Registry(app, script, classes, crons)


def from_classes(*classes: type[Object], script: str = "app", crons: Sequence[CronSpec] = ()) -> Registry:
    """A registry of classes at hand, for tests and embedding. Raises BadApp."""
    problems: list[Problem] = []
    specs = [build_class(cls, problems, class_lines(inspect.getfile(cls))) for cls in (*PLATFORM, *classes)]
    specs += _schedules(crons, problems)
    if problems:
        raise BadApp(problems)
    return Registry(script, script, {spec.name: spec for spec in specs if spec}, tuple(crons))


def _schedules(crons: Sequence[CronSpec], problems: list[Problem]) -> Iterator[ClassSpec]:
    if crons:
        yield from filter(None, [build_class(cron_class(crons), problems, {})])


def _classes(module: ModuleType, problems: list[Problem]) -> Iterator[ClassSpec]:
    for cls in PLATFORM:
        yield from filter(None, [build_class(cls, problems, {})])
    seen: dict[str, type[Object]] = {}
    for cls in _served(module):
        lines = class_lines(inspect.getfile(cls))
        at = lines.get(cls.__name__, [0])
        first = seen.setdefault(cls.__name__, cls)
        if cls.__name__ in _RESERVED:
            problems.append(Problem(_file(cls), at[-1], cls.__name__, "this is the name of a platform class"))
        elif first is not cls or len(at) > 1:
            there = f"{_file(first)}:{at[0]}" if first is cls else _file(first)
            problems.append(Problem(_file(cls), at[-1], cls.__name__, f"a class of this name is already in {there}"))
        elif spec := build_class(cls, problems, lines):
            yield spec


def _served(module: ModuleType) -> list[type[Object]]:
    """Public subclasses of Object in the module's namespace, each once, in order of appearance."""
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Object) and not value.__name__.startswith("_")
    ]
    own = [cls for cls in found if cls is not Object and cls is not Cron and cls not in PLATFORM]
    # A base that another module keeps abstract is a building block of ours, not one of our classes.
    return [cls for cls in dict.fromkeys(own) if cls.__module__ == module.__name__ or not inspect.isabstract(cls)]


def _crons(module: ModuleType, problems: list[Problem]) -> Iterator[CronSpec]:
    names: set[str] = set()
    functions = {id(value): value for value in vars(module).values() if hasattr(value, CRON_MARK)}
    for function in functions.values():
        where = (_file(module), getattr(getattr(function, "__code__", None), "co_firstlineno", 0), "")
        if not inspect.isfunction(function) or inspect.isgeneratorfunction(function):
            problems.append(Problem(*where, "@cron belongs on a plain function of the module"))
            continue
        if required(function):
            problems.append(Problem(*where, f"{function.__name__} is run by @cron and can take no arguments"))
        for mark in getattr(function, CRON_MARK):
            if mark.name in names or not 1 <= len(mark.name.encode(errors="replace")) <= 255:
                problems.append(Problem(*where, f"@cron name {mark.name!r} is taken, empty or over 255 bytes"))
            names.add(mark.name)
            yield CronSpec(mark, function, inspect.iscoroutinefunction(function))


def _file(thing: ModuleType | type[Object]) -> str:
    """A file as problems name it: from the folder its imports start at."""
    module = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
    path = Path(inspect.getfile(thing))
    depth = module.count(".") + (2 if path.stem == "__init__" else 1)
    return str(Path(*path.parts[-depth:]))
