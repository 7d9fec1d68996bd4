"""Loading an app: what is served, and everything that is wrong with it at once."""

import sys
from pathlib import Path

import pytest

from domicile import registry
from domicile.errors import BadApp, NoSuchClass, NoSuchMethod
from domicile.marks import Region


@pytest.fixture(autouse=True)
def _clean_imports():
    modules, path = dict(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - set(modules):
        if "domicile" not in name:
            del sys.modules[name]
    sys.path[:] = path


GOOD = """
    import domicile
    from domicile import Object

    class _Base(Object):
        idle_secs = 60

        def shared(self) -> int:
            return 1

    class Lot(_Base):
        migrations = "migrations/lot"
        placement = domicile.Region("eu-west")
        LIMIT = 3

        def __init__(self) -> None:
            self.memory = {}

        async def bid(self, user: str, amount: int = 1) -> dict: return {}

        @domicile.read
        def state(self) -> dict: return {}

        def _helper(self): ...
        def init(self): ...
        async def on_wake(self): ...
        def on_alarm(self): ...

    class Heard(Object):
        def on_alarm(self, alarm): ...

    @domicile.cron("0 3 * * *", name="nightly")
    @domicile.cron("@@", name="x") if False else (lambda f: f)
    def sweep(): ...

    @domicile.cron("*/5 * * * *")
    async def tick(verbose=False): ...
"""


def problems_of(path, **given):
    with pytest.raises(BadApp) as caught:
        registry.load(str(path), **given)
    return [(p.file, p.line, p.cls, p.text) for p in caught.value.problems]


def test_what_an_app_serves(write_app, tmp_path):
    """Public classes with their methods, hooks, settings and migrations in order; schedules; the platform's own."""
    write_app("SELECT 2", "migrations/lot/0002_b.sql")
    write_app("SELECT 1", "migrations/lot/0001_a.sql")

    found = registry.load(str(write_app(GOOD, "lots.py")))

    lot = found.find("Lot")
    assert sorted(found.classes) == ["Cron", "Database", "Heard", "Lot"]
    assert found.script == "lots"
    assert {m.name: (m.is_async, m.is_read) for m in lot.methods.values()} == {
        "shared": (False, False),
        "bid": (True, False),
        "state": (False, True),
    }
    assert {h.name: (h.is_async, h.takes_alarm) for h in lot.hooks.values()} == {
        "init": (False, False),
        "on_wake": (True, False),
        "on_alarm": (False, False),
    }
    assert found.find("Heard").hooks["on_alarm"].takes_alarm
    assert [(m.name, m.sql) for m in lot.migrations] == [("0001_a.sql", "SELECT 1"), ("0002_b.sql", "SELECT 2")]
    assert (lot.placement, lot.idle_secs) == (Region("eu-west"), 60)
    assert [(c.name, c.mark.crontab.text, c.is_async) for c in found.crons] == [
        ("nightly", "0 3 * * *", False),
        ("tick", "*/5 * * * *", True),
    ]
    with pytest.raises(NoSuchClass, match="Heard, Lot"):
        found.find("Auction")
    with pytest.raises(NoSuchMethod):
        lot.method("_helper")
    with pytest.raises(NoSuchMethod):
        lot.method("set_alarm")


@pytest.mark.parametrize(
    ("body", "line", "says"),
    [
        ("def m(self, a: object): ...", 5, "m: the annotation of a is not supported"),
        ("def m(self) -> complex: ...", 5, "the annotation of the result"),
        ("def m(self, a: 'Missing'): ...", 5, "name 'Missing' is not defined"),
        ("def m(): ...", 5, "the first parameter must be self"),
        ("def m(self):\n        yield 1", 5, "is a generator"),
        ("async def m(self):\n        yield 1", 5, "is a generator"),
        ("@property\n    def m(self): ...", 5, "is a property"),
        ("@functools.cached_property\n    def m(self): ...", 4, "is a property"),
        ("@staticmethod\n    def m(): ...", 5, "is no method of an instance"),
        ("@classmethod\n    def m(cls): ...", 5, "is no method of an instance"),
        ("m = functools.partialmethod(print)", 4, "neither a plain method nor data"),
        ("def __init__(self, x): ...", 5, "__init__ may take no parameters"),
        ("def init(self, x): ...", 5, "takes no parameters but self"),
        ("def on_alarm(self, alarm, more): ...", 5, "takes self and, if it likes, the alarm"),
        ("def on_sleep(self):\n        yield", 5, "is a hook and must be a plain"),
        ("on_wake = 3", 4, "is a hook and must be a plain"),
        ("@domicile.read\n    def init(self): ...", 5, "can not be @read"),
        ("@domicile.cron('* * * * *')\n    def m(self): ...", 5, "belongs on a function of the module"),
        ("def now(self): ...", 5, "'now' is the platform's own"),
        ("name = 'x'", 4, "'name' is the platform's own"),
        ("migrations = 'nowhere'", 4, "no directory 'nowhere'"),
        ("migrations = 3", 4, "is the path of a directory"),
        ("idle_secs = -1", 4, "idle_secs is a positive number"),
        ("placement = 'eu'", 4, "placement is a Region"),
        ("placement = domicile.Region('EU West')", 4, "'EU West' is no region's name"),
        ("placement = domicile.Region('control')", 4, "'control' is no region's name"),
        ("@abc.abstractmethod\n    def m(self): ...", 4, "abstract (m)"),
    ],
)
def test_a_class_that_cannot_serve(write_app, body, line, says):
    """Each fault names file, line and class."""
    bases = "Object, abc.ABC" if "abc" in body else "Object"
    path = write_app(
        f"import abc, functools, domicile\nfrom domicile import Object\n\nclass Bad({bases}):\n    {body}\n"
    )
    [(file, at, cls, text)] = problems_of(path)

    assert (file, cls) == ("app.py", "Bad")
    assert says in text
    assert at == line


def test_all_problems_at_once(write_app):
    """Every fault of every class comes in one error, in the order of the file."""
    path = write_app(
        """
        from domicile import Object

        class A(Object):
            def one(self, a: object): ...
            @property
            def two(self): ...

        class A(Object):
            pass

        class Database(Object):
            pass

        class Straße(Object):
            idle_secs = "x"
        """
    )

    found = problems_of(path)

    assert [(line, cls) for _, line, cls, _ in found] == [(9, "A"), (12, "Database"), (15, "Straße"), (15, "Straße")]
    assert "already in app.py:4" in found[0][3]
    assert "platform class" in found[1][3]
    with pytest.raises(BadApp, match=r"app\.py:12: Database: this is the name of a platform class"):
        registry.load(str(path))


def test_bad_migrations(write_app, tmp_path):
    """Names out of order, numbers used twice and files that are no text are found before anything runs."""
    folder = tmp_path / "m"
    for name, content in {
        "0001_a.sql": b"",
        "0001_b.sql": b"",
        "2_c.sql": b"",
        "0003_d.sql": b"\xff",
        "x.txt": b"",
    }.items():
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    path = write_app("from domicile import Object\n\nclass Lot(Object):\n    migrations = 'm'\n")

    texts = [text for *_, text in problems_of(path)]

    assert len(texts) == 3
    assert "m/0001_b.sql: 0001_a.sql has this number already" in texts
    assert any(text.startswith("m/0003_d.sql cannot be read") for text in texts)
    assert any(text.startswith("m/2_c.sql: a migration is named like") for text in texts)


@pytest.mark.parametrize(
    ("source", "line", "says"),
    [
        ("x = 1\n\nraise RuntimeError('no')\n", 3, "RuntimeError: no"),
        ("x = 1\nimport nowhere_at_all\n", 2, "ModuleNotFoundError"),
        ("x = 1\ndef f(:\n", 2, "SyntaxError"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit"),
        ("import domicile\n@domicile.cron('0 0 30 2 *')\ndef f(): ...\n", 2, "no month in it has"),
    ],
)
def test_an_app_that_cannot_be_imported(write_app, source, line, says):
    """Whatever the app raises names its file and line, and no module of it is left behind."""
    write_app("VALUE = 1", "helper_of_app.py")
    before = set(sys.modules), list(sys.path)

    [(file, at, cls, text)] = problems_of(write_app("import helper_of_app\n" + source))

    assert (file, at, cls) == ("app.py", line + 1, "")
    assert says in text
    assert (set(sys.modules), sys.path) == before


def test_a_failed_reload_leaves_the_old_app(write_app):
    """When an app is loaded again and fails, what was loaded before is still there."""
    path = write_app("from domicile import Object\n\nclass Lot(Object): ...\n", "reloaded.py")
    registry.load(str(path))
    old = sys.modules["reloaded"]

    path.write_text("raise RuntimeError\n" + "#" * 100)
    problems_of(path)

    assert sys.modules["reloaded"] is old


def test_reload_sees_the_new_source(write_app):
    """Loading again executes the file as it is now."""
    path = write_app("from domicile import Object\n\nclass One(Object): ...\n", "changing.py")
    registry.load(str(path))
    path.write_text("from domicile import Object\n\nclass SecondOne(Object): ...\n")

    assert "SecondOne" in registry.load(str(path)).classes


def test_files_named_like_other_modules(write_app):
    """An app called like a library's or another app's module is its own, and hides nothing."""
    source = "from domicile import Object\n\nclass {}(Object):\n    def m(self, a: int) -> int: ...\n"
    first = registry.load(str(write_app(source.format("First"), "a/json.py")))
    second = registry.load(str(write_app(source.format("Second"), "b/json.py")))

    assert ("First" in first.classes, "Second" in second.classes) == (True, True)
    assert "dumps" in vars(sys.modules["json"])
    assert (first.script, second.script) == ("json", "json")


def test_an_app_of_several_files(write_app):
    """Classes that the module imports are served too, by path of a package and by dotted name."""
    write_app("from shop.lots import Lot\nfrom .notes import Note", "shop/__init__.py")
    write_app("from domicile import Object\nclass Lot(Object):\n    migrations = 'sql'", "shop/lots.py")
    write_app("import abc\nfrom domicile import Object\nclass Note(Object): ...", "shop/notes.py")
    root = write_app("SELECT 1", "shop/sql/0001_x.sql").parents[2]

    by_path = registry.load("shop", root=root)
    by_file = registry.load(str(root / "shop" / "lots.py"))
    by_name = registry.load("shop.notes", root=root)

    assert sorted(by_path.classes) == ["Database", "Lot", "Note"]
    assert by_path.find("Lot").migrations[0].name == "0001_x.sql"
    assert (by_file.script, by_name.script) == ("shop.lots", "shop.notes")


@pytest.mark.parametrize("app", ["nowhere.py", "no-such-thing", "a/b.py", "not_there_at_all"])
def test_no_such_app(tmp_path, app):
    """A path or name that leads nowhere is said so."""
    assert problems_of(app, root=tmp_path)[0][0] == app


def test_bad_schedules(write_app):
    """A schedule needs a plain function without arguments and a name of its own."""
    path = write_app(
        """
        import domicile

        @domicile.cron("* * * * *", name="a")
        def one(x): ...

        @domicile.cron("* * * * *", name="a")
        def two(): ...

        @domicile.cron("* * * * *")
        def three():
            yield
        """
    )

    assert [(line, text.split()[0]) for _, line, _, text in problems_of(path)] == [
        (4, "one"),
        (7, "@cron"),
        (10, "@cron"),
    ]


def test_script_name(write_app):
    """The script may be named otherwise than the module, within the rule of script ids."""
    path = write_app("x = 1\n")

    assert registry.load(str(path), script="my-app").script == "my-app"
    assert "no script id" in problems_of(path, script="my app")[0][3]


def test_every_example_loads():
    """The examples are apps without a problem."""
    folder = Path(__file__).resolve().parents[2] / "examples"

    assert {path.name: sorted(registry.load(str(path)).classes) for path in sorted(folder.glob("*.py"))} == {
        "auction.py": ["Auction", "Database", "Winnings"],
        "counter.py": ["Counter", "Database"],
        "notes.py": ["Database"],
    }
