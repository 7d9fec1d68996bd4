"""House style as a test: sizes by ratchet, banned calls with their replacement, names, words."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from house import PACKAGES, ROOT, SOURCES, functions, import_name, named, parsed, source_files, text_files

FILE_LINES_MAX = 500
FILE_LINES_AIM = 300
FUNCTION_LINES_MAX = 60
FUNCTION_LINES_AIM = 40
# Over the aim today. A number may only go down, and a line leaves the table when its file or function has shrunk.
LONG_FILES: dict[str, int] = {"node/residency.py": 302}
LONG_FUNCTIONS: dict[str, int] = {}


@dataclass(frozen=True)
class Ban:
    """A call no module makes but those named: `instead` says what to write."""

    calls: tuple[str, ...]
    instead: str
    but: tuple[str, ...] = ()


STARTERS = ("node/main.py", "node/supervisor.py", "cli/")
CLOCKS = ("node/clock.py", *STARTERS)
BANS = (
    Ban(
        ("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.clock_gettime", "datetime.now"),
        "the Clock that is passed in",
        (*CLOCKS, "sdk/system.py"),
    ),
    Ban(("time.perf_counter", "time.perf_counter_ns"), "the Clock that is passed in", CLOCKS),
    Ban(("time.sleep", "asyncio.sleep"), "Clock.sleep, or a wait on the condition itself", (*CLOCKS, "sdk/system.py")),
    Ban(("random.",), "the seeded Random that is passed in", ("node/main.py", "sdk/system.py", "cli/")),
    Ban(
        ("os.urandom", "secrets.", "uuid.uuid1", "uuid.uuid4"),
        "the randomness that is passed in",
        ("node/main.py", "sdk/system.py", "cli/"),
    ),
    Ban(
        ("os.environ", "os.getenv", "os.putenv"),
        "a setting in node/config.py",
        ("node/config.py", "node/sqlite/setup.py", "examples/", *STARTERS),
    ),
    Ban(
        ("os._exit", "sys.exit", "os.kill", "os.abort"),
        "the exit that is passed in",
        ("node/failpoints.py", *STARTERS),
    ),
    Ban(("print",), "structlog, or cli/output.py", ("node/supervisor.py", "cli/", "examples/")),
    Ban(("os.system", "os.popen", "eval", "exec", "pickle."), "nothing: there is a better way"),
    Ban(("asyncio.get_event_loop",), "asyncio.get_running_loop, once, kept in a variable"),
    Ban(("wal_autocheckpoint",), "set_wal_hook alone: the two share one slot", ("node/sqlite/database.py",)),
)
# asyncio.get_running_loop costs a system call in Python 3.11: modules that run for every call keep the loop they were
# given. `__init__` and functions named here run once.
HOT = (
    "node/call.py",
    "node/mailbox.py",
    "node/sqlite/transaction.py",
    "node/flight.py",
    "node/workers.py",
    "node/routing/router.py",
)
# Started by name, not imported.
ENTRY_POINTS = {"cli/main.py", "cli/node_with_control.py", "node/main.py", "node/supervisor.py", "sdk/testing.py"}
# Tested, and used once there is more than one node.
FOR_LATER: set[str] = set()
# Tests that block a thread to see that another goes on, watch that nothing happens, or pace a client.
SLEEP_ON_PURPOSE = {
    "test_the_heartbeat_goes_on_while_the_loop_is_blocked",
    "test_an_outgoing_call_waits_for_earlier_writes_to_land",
    "test_a_round_that_is_cut_off_answers_everybody_and_runs_nobody_twice",
    "test_blips_of_the_store_leave_no_gap",
    "test_a_node_that_leaves_sends_its_callers_on",
}
BOASTS = re.compile(
    r"\b(blazing\w*|lightning[- ]fast|world[- ]class|best[- ]in[- ]class|battle[- ]tested|enterprise[- ]grade|"
    r"production[- ]ready|bullet[- ]?proof|seamless\w*|effortless\w*|revolutionary|cutting[- ]edge|"
    r"state[- ]of[- ]the[- ]art|game[- ]chang\w+|rock[- ]solid|zero[- ]downtime|infinitely scal\w+|magical\w*)\b",
    re.IGNORECASE,
)
LEFT_OVERS = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")
FOREIGN_PATHS = re.compile(r"(?<![\w.])/(" + "|".join(("wo" + "rk", "tmp/ve" + "nv")) + r")/\w")


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines without the docstring."""
    assert function.end_lineno
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None and first.end_lineno:
        lines -= first.end_lineno - first.lineno + 1
    return lines


def ratchet(found: dict[str, int], table: dict[str, int], aim: int) -> list[str]:
    """What is wrong between what was found over the aim and what the table still allows."""
    wrong = [
        f"{name}: {lines} lines, {table.get(name, aim)} allowed"
        for name, lines in found.items()
        if lines > table.get(name, aim)
    ]
    wrong += [
        f"{name}: has shrunk to {found.get(name, f'at most {aim}')}: lower or remove its number"
        for name, lines in table.items()
        if found.get(name, 0) < lines
    ]
    return wrong  # fmt: skip


def test_files_stay_short() -> None:
    """No source file is over 500 lines, and those over 300 only shrink."""
    lines = {named(path): len(path.read_text().splitlines()) for path in source_files(*SOURCES)}
    assert not [f"{name}: {count}" for name, count in lines.items() if count > FILE_LINES_MAX]
    assert not ratchet(
        {name: count for name, count in lines.items() if count > FILE_LINES_AIM}, LONG_FILES, FILE_LINES_AIM
    )


def test_functions_stay_short() -> None:
    """No function is over 60 lines, and those over 40 only shrink."""
    lines = {
        f"{named(path)}:{name}": lines_of(function)
        for path in source_files(*SOURCES)
        for name, function in functions(parsed(path))
    }
    assert not [f"{name}: {count}" for name, count in lines.items() if count > FUNCTION_LINES_MAX]
    long = {name: count for name, count in lines.items() if count > FUNCTION_LINES_AIM}
    assert not ratchet(long, LONG_FUNCTIONS, FUNCTION_LINES_AIM)


def test_ratchet_notices_growth_and_shrinking() -> None:
    """A number that grows fails, one that shrinks must be lowered, one that stands passes."""
    assert ratchet({"a": 50}, {"a": 50}, 40) == []
    assert ratchet({"a": 51}, {"a": 50}, 40)
    assert ratchet({"a": 49}, {"a": 50}, 40)
    assert ratchet({}, {"a": 50}, 40)
    assert ratchet({"b": 41}, {}, 40)


def calls(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything used by its module's name, with `from x import y` resolved to x.y.

    `sleep(0)` is left out: it waits for nothing and lets others run.
    """
    origin: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            origin |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            origin |= {name.asname: name.name for name in node.names if name.asname}
    gives_way = {
        id(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and len(node.args) == 1 and ast.unparse(node.args[0]) == "0"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node.attr == "sleep" and id(node) in gives_way:
                continue
            dotted = ast.unparse(node)
            head, _, rest = dotted.partition(".")
            yield node.lineno, f"{origin.get(head, head)}.{rest}"
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.lineno, origin.get(node.id, node.id)


def breaks(ban: Ban, used: str) -> bool:
    """A ban's `time.sleep` also stops `datetime.time.sleep`; one that ends with a dot stops the whole module."""
    for call in ban.calls:
        if call.endswith("."):
            if used.startswith(call) and used != "random.Random":
                return True
        elif used == call or ("." in call and used.endswith("." + call)):
            return True
    return False


@pytest.mark.parametrize("ban", BANS, ids=lambda ban: ban.calls[0])
def test_banned_calls(ban: Ban) -> None:
    """Time, chance, the environment and the end of the process are passed in; other bans name what to use instead."""
    found = [
        f"{named(path)}:{line} {used}"
        for path in source_files(*PACKAGES, "examples")
        if not named(path).startswith(ban.but or ("nothing",))
        for line, used in calls(parsed(path))
        if breaks(ban, used)
    ]
    assert not found, f"use {ban.instead}"


def test_bans_see_through_imports() -> None:
    """`from time import sleep` and `import time as t` hide nothing; a seeded Random may be named."""
    tree = ast.parse(
        "from time import sleep\nimport time as t\nimport random\nsleep(1)\nt.monotonic()\nrandom.Random(1)"
    )
    used = [name for _, name in calls(tree)]
    assert "time.sleep" in used
    assert "time.monotonic" in used
    assert not any(breaks(Ban(("random.",), ""), name) for name in used)
    assert breaks(Ban(("random.",), ""), "random.random")


def test_hot_modules_keep_their_loop() -> None:
    """On the path of every call nothing asks asyncio for the running loop, nor uses what asks inside."""
    found = [
        f"{named(path)}:{function.lineno} {name}"
        for path in map(ROOT.joinpath, HOT)
        if path.exists()
        for name, function in functions(parsed(path))
        if not name.endswith("__init__")
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and node.attr in ("get_running_loop", "Queue", "PriorityQueue")
        and ast.unparse(node.value) == "asyncio"
    ]  # fmt: skip
    assert not found, "keep the loop in a variable; use a deque and loop.create_future()"


def test_tests_do_not_sleep() -> None:
    """Tests wait on conditions. sleep(0) lets others run; a bounded poll lives in a conftest.py or a kit beside it.

    The simulated world sleeps on its virtual clock, which takes no time; classes in a test, such as objects that hang,
    may do as they like; faults come after times that are drawn.
    """
    found = [
        f"{named(path)}:{name}"
        for path in source_files("tests")
        if path.name.startswith("test_") and "sim" not in path.parts
        for name, function in functions(parsed(path))
        if "." not in name and name not in SLEEP_ON_PURPOSE
        for node in without_classes(function)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("time.sleep", "asyncio.sleep", "sleep")
        and not (len(node.args) == 1 and re.search(r"^0$|uniform\(", ast.unparse(node.args[0])))
    ]
    assert not found


def without_classes(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef):
            yield child
            yield from without_classes(child)


def test_nothing_is_left_for_later() -> None:
    """Work left to do is an issue, not a comment."""
    found = [
        f"{named(path)}:{number} {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if LEFT_OVERS.search(line)
    ]
    assert not found


def test_no_path_of_one_machine() -> None:
    """Nothing names a folder that only one person's machine has."""
    found = [
        f"{named(path)}:{number} {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if FOREIGN_PATHS.search(line)
    ]
    assert not found


def test_nothing_boasts() -> None:
    """The project says what it does and what it costs, and leaves praise to others."""
    found = [
        f"{named(path)}:{number} {line.strip()}"
        for path in text_files()
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if BOASTS.search(line)
    ]
    assert not found


def test_every_module_says_what_it_is() -> None:
    """Each module opens with a docstring: its one idea."""
    missing = [
        named(path)
        for path in source_files(*SOURCES, "tests")
        if path.read_text().strip() and len((ast.get_docstring(parsed(path)) or "").strip(". ")) < 12
    ]
    assert not missing


def test_every_test_states_its_promise() -> None:
    """A test's docstring says what would be broken if it failed."""
    missing = [
        f"{named(path)}:{name}"
        for path in source_files("tests")
        for name, function in functions(parsed(path))
        if name.rpartition(".")[2].startswith("test_") and not ast.get_docstring(function)
    ]
    assert not missing


def test_test_names_are_not_reused() -> None:
    """No test hides another of the same name in its module."""
    repeated = [
        f"{named(path)}:{name}"
        for path in source_files("tests")
        for name, times in Counter(name for name, _ in functions(parsed(path)) if name.startswith("test_")).items()
        if times > 1
    ]
    assert not repeated


def test_test_modules_have_names_of_their_own() -> None:
    """A module's name in a report says which one it is."""
    names = Counter(path.name for path in source_files("tests") if path.name.startswith("test_"))
    assert not [name for name, times in names.items() if times > 1]


def test_no_dead_module() -> None:
    """Each module is imported by another one of the product, or is started by name."""
    imported: set[str] = set()
    for path in source_files(*PACKAGES):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Import):
                imported |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    dead = [
        named(path)
        for path in source_files(*PACKAGES)
        if path.name not in ("__init__.py", "__main__.py")
        and named(path) not in ENTRY_POINTS | FOR_LATER
        and import_name(path) not in imported
    ]
    assert not dead


def test_every_package_is_listed_for_wheels() -> None:
    """pyproject.toml lists every folder that is a package: one that is missing works here and is not in a wheel."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    present = {
        import_name(path.parent / "x").removesuffix(".x")
        for path in source_files(*PACKAGES)
        if path.name == "__init__.py"
    }
    assert sorted(listed) == sorted(present)


def test_every_dependency_is_used() -> None:
    """What is installed for everybody is imported by the product."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[<>=\[]", line)[0].replace("-", "_") for line in project["dependencies"]}
    imported = set()
    for path in source_files(*PACKAGES):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Import):
                imported |= {name.name.split(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
    to_come = {"aetcd", "grpcio", "temporalio"}  # for the etcd provider and the control plane
    assert wanted - to_come <= imported


def test_assertions_are_on() -> None:
    """Assertions guard invariants, so nothing here runs with -O."""
    assert __debug__
    assert not [named(path) for path in text_files() if path.name in ("Makefile", "run") and " -O " in path.read_text()]
