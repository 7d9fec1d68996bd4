"""One class of an app: its methods, hooks and migrations, or everything that keeps it from serving."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domicile import method as methods
from domicile.errors import NoSuchMethod, Problem
from domicile.marks import CRON_MARK, READ_MARK, Region
from domicile.method import MethodSpec
from domicile.object import HOOKS, Object
from domicile.signature import required

CLASS_RE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
REGION_RE = re.compile(r"(?!control$)[a-z0-9][a-z0-9-]{0,62}")
MIGRATION_RE = re.compile(r"\d{4}_[A-Za-z0-9_.-]+\.sql")
_SETTINGS = ("migrations", "placement", "idle_secs")
_PLATFORM_NAMES = frozenset(name for name in vars(Object) if not name.startswith("__")) - {*HOOKS, *_SETTINGS}


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of a class's migrations; `name` is its file name, which orders it and identifies it for ever."""

    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class HookSpec:
    """A hook the class defines: call `function(instance)`, or with the alarm where `takes_alarm`."""

    name: str
    function: Any
    is_async: bool
    takes_alarm: bool


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """A class as it is served. `hooks` has those the class defines, by name."""

    name: str
    type: type[Object]
    methods: Mapping[str, MethodSpec]
    hooks: Mapping[str, HookSpec]
    migrations: tuple[Migration, ...]
    placement: Region | None
    idle_secs: float | None

    def method(self, name: str) -> MethodSpec:
        """Raises NoSuchMethod."""
        spec = self.methods.get(name)
        if spec is None:
            raise NoSuchMethod(f"{self.name} has no method {name!r}; it has {', '.join(sorted(self.methods))}")
        return spec


def build_class(cls: type[Object], problems: list[Problem], lines: Mapping[str, list[int]]) -> ClassSpec | None:
    """The class's spec, or None with what is wrong added to `problems`. `lines`: see `loading.class_lines`."""
    check = _Check(cls, lines.get(cls.__name__, [0])[-1])
    found_methods = {spec.name: spec for spec in check.methods()}
    hooks = {spec.name: spec for spec in check.hooks()}
    check.shape()
    migrations = tuple(check.migrations())
    problems.extend(check.problems)
    if check.problems:
        return None
    return ClassSpec(cls.__name__, cls, found_methods, hooks, migrations, cls.placement, cls.idle_secs)


class _Check:
    """Reads one class, piece by piece, and gathers what is wrong."""

    def __init__(self, cls: type[Object], line: int) -> None:
        self.cls = cls
        self.line = line
        self.problems: list[Problem] = []
        self.members = self._members()

    def methods(self) -> Iterator[MethodSpec]:
        for name, (owner, member) in self.members.items():
            if name in _PLATFORM_NAMES:
                self._bad(f"{name!r} is the platform's own; choose another name", owner, member)
            elif name.startswith("_") or name in HOOKS or name in _SETTINGS:
                continue
            elif why := _no_method(member):
                self._bad(f"{name} {why}", owner, member)
            elif inspect.isfunction(member):
                try:
                    yield methods.build(name, member)
                except TypeError as error:
                    self._bad(f"{name}: {error}", owner, member)

    def hooks(self) -> Iterator[HookSpec]:
        for name in HOOKS:
            if name not in self.members:
                continue
            owner, hook = self.members[name]
            if why := _no_hook(name, hook):
                self._bad(f"{name} {why}", owner, hook)
                continue
            takes_alarm = name == "on_alarm" and len(_parameters(hook)) > 1
            yield HookSpec(name, hook, inspect.iscoroutinefunction(hook), takes_alarm)

    def shape(self) -> None:
        """The class as a whole: its name, how it is made, its settings."""
        if not CLASS_RE.fullmatch(self.cls.__name__):
            self._bad("a class name is [A-Za-z_][A-Za-z0-9_]{0,63}, so that it can stand in a URL and a metric")
        if inspect.isabstract(self.cls):
            missing = ", ".join(sorted(self.cls.__abstractmethods__))  # type: ignore[attr-defined]
            self._bad(f"abstract ({missing}); begin the name of a mere base class with an underscore")
        init = self.cls.__init__
        if inspect.isfunction(init) and len(required(init)) > 1:
            self._bad("__init__ may take no parameters but self: nobody is there to give them", self.cls, init)
        idle = self.cls.idle_secs
        placement: object = self.cls.placement
        if idle is not None and (isinstance(idle, bool) or not isinstance(idle, (int, float)) or not 0 < idle < 1e9):
            self._bad(f"idle_secs is a positive number of seconds, not {idle!r}")
        if placement is not None and not isinstance(placement, Region):
            self._bad(f'placement is a Region, as in Region("eu-west"), not {placement!r}')
        elif placement is not None and not REGION_RE.fullmatch(str(placement.name)):
            self._bad(f"{placement.name!r} is no region's name: [a-z0-9][a-z0-9-]{{0,62}}, and not control")

    def migrations(self) -> Iterator[Migration]:
        setting: object = self.cls.migrations
        if setting is None:
            return
        if not isinstance(setting, str):
            self._bad(f"migrations is the path of a directory, not {setting!r}")
            return
        owner = next(base for base in self.cls.__mro__ if "migrations" in vars(base))
        folder = Path(inspect.getfile(owner)).parent / setting
        if not folder.is_dir():
            self._bad(f"there is no directory {setting!r} beside the class's file for its migrations")
            return
        numbers: dict[str, str] = {}
        for path in sorted(folder.glob("*.sql")):
            number = path.name[:4]
            if not MIGRATION_RE.fullmatch(path.name):
                self._bad(f"{setting}/{path.name}: a migration is named like 0001_bids.sql")
            elif number in numbers:
                self._bad(f"{setting}/{path.name}: {numbers[number]} has this number already")
            else:
                yield from self._migration(path, setting)
            numbers[number] = path.name

    def _migration(self, path: Path, setting: str) -> Iterator[Migration]:
        try:
            yield Migration(path.name, path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            self._bad(f"{setting}/{path.name} cannot be read: {error}")

    def _members(self) -> dict[str, tuple[type, Any]]:
        """What the class and its bases below Object define, each name as the class has it."""
        found: dict[str, tuple[type, Any]] = {}
        for base in self.cls.__mro__:
            if base is not object and base is not Object:
                for name, member in vars(base).items():
                    found.setdefault(name, (base, member))
        return found

    def _bad(self, text: str, owner: type | None = None, member: Any = None) -> None:
        line = _line(member) or self.line
        self.problems.append(Problem(_shown(owner or self.cls), line, self.cls.__name__, text))


def _line(member: Any) -> int:
    """Where a function, property, static or class method is written; 0 for anything else."""
    function = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code.co_firstlineno if code else 0


def _no_method(member: Any) -> str | None:
    """Why a public member can be no part of the interface, or None: it is a method, or plain data."""
    if isinstance(member, property) or type(member).__name__ == "cached_property":
        return "is a property; make it a method, or begin its name with an underscore"
    if isinstance(member, (staticmethod, classmethod)):
        return "is no method of an instance; begin its name with an underscore or move it out of the class"
    if inspect.isgeneratorfunction(member) or inspect.isasyncgenfunction(member):
        return "is a generator; an answer is one JSON value: return a list"
    if hasattr(member, CRON_MARK):
        return "has @cron, which belongs on a function of the module; use set_alarm(cron=...) in an object"
    if (
        not inspect.isfunction(member)
        and not isinstance(member, type)
        and (callable(member) or hasattr(member, "__get__"))
    ):
        return "is neither a plain method nor data"
    return None


def _no_hook(name: str, hook: Any) -> str | None:
    if not inspect.isfunction(hook) or inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
        return "is a hook and must be a plain `def` or `async def` method"
    if getattr(hook, READ_MARK, False):
        return "is a hook and can not be @read"
    most = 2 if name == "on_alarm" else 1
    if len(required(hook)) > most or not _parameters(hook):
        return "takes self and, if it likes, the alarm" if most == 2 else "takes no parameters but self"
    return None


def _parameters(function: Any) -> list[inspect.Parameter]:
    """Parameters that can be given by position; `*args` counts for one more."""
    kinds = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return [p for p in inspect.signature(function).parameters.values() if p.kind in kinds]


def _shown(cls: type) -> str:
    path = Path(inspect.getfile(cls))
    return path.name if path.stem != "__init__" else f"{path.parent.name}/{path.name}"
