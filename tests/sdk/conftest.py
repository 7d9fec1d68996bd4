"""A context over a real SQLite in memory, and clients over a stub transport with a virtual clock."""

import contextlib
import json
import logging
import sqlite3
import textwrap
from dataclasses import dataclass, field

import httpx
import pytest

from domicile.context import Alarm
from domicile.system import System


class MemorySql:
    """`Sql` on sqlite3, one transaction for ever."""

    def __init__(self):
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        self.db.row_factory = lambda cursor, row: dict(zip([c[0] for c in cursor.description], row, strict=True))

    def _run(self, sql, params):
        named = len(params) == 1 and isinstance(params[0], dict)
        return self.db.execute(sql, params[0] if named else params)

    def exec(self, sql, *params):
        return max(0, self._run(sql, params).rowcount)

    def query(self, sql, *params):
        return self._run(sql, params).fetchall()

    def one(self, sql, *params):
        return self._run(sql, params).fetchone()

    def batch(self, statements):
        return [self.query(sql, *([given] if isinstance(given, dict) else given)) for sql, given in statements]

    @contextlib.contextmanager
    def tx(self):
        self.db.execute("SAVEPOINT tx")
        try:
            yield
        except BaseException:
            self.db.execute("ROLLBACK TO tx")
            raise
        finally:
            self.db.execute("RELEASE tx")


class MemoryKv:
    """`Kv` in a dict of JSON texts."""

    def __init__(self):
        self.values = {}

    def get(self, key, default=None):
        return json.loads(self.values[key]) if key in self.values else default

    def put(self, key, value):
        self.values[key] = json.dumps(value)

    def delete(self, key):
        return self.values.pop(key, None) is not None

    def list(self, prefix=""):
        return {key: json.loads(self.values[key]) for key in sorted(self.values) if key.startswith(prefix)}


@dataclass
class MemoryContext:
    """`Context` whose clock and outgoing calls the test sets."""

    scope: str = "demo"
    cls: str = "Thing"
    name: str = "a"
    now: int = 1_700_000_000_000
    sql: MemorySql = field(default_factory=MemorySql)
    kv: MemoryKv = field(default_factory=MemoryKv)
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("object"))
    armed: dict = field(default_factory=dict)
    calls: list = field(default_factory=list)
    answer: object = b"null"

    def now_ms(self):
        return self.now

    def set_alarm(self, name, due_ms, payload_json, cron):
        self.armed[name] = Alarm(name, due_ms, payload_json, cron)

    def clear_alarm(self, name):
        return self.armed.pop(name, None) is not None

    def alarms(self):
        return sorted(self.armed.values(), key=lambda alarm: (alarm.due_ms, alarm.name))

    def invoke(self, cls, name, method, body):
        self.calls.append((cls, name, method, body))
        return self.answer


@pytest.fixture
def context():
    return MemoryContext()


@pytest.fixture
def make_context():
    return MemoryContext


@pytest.fixture
def write_app(tmp_path):
    """Writes an app's file below a temporary directory and gives its path."""

    def write(source, name="app.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return path

    return write


class VirtualSystem:
    """A clock that only pauses move, and randomness that is always `random`."""

    def __init__(self):
        self.now = 100.0
        self.pauses = []
        self.keys = 0
        self.system = System(lambda: self.now, lambda: 0.0, self._key, self._sleep, self._sleep_async)

    def _key(self):
        self.keys += 1
        return f"key-{self.keys}"

    def _sleep(self, secs):
        self.pauses.append(secs)
        self.now += secs

    async def _sleep_async(self, secs):
        self._sleep(secs)


@pytest.fixture
def virtual():
    return VirtualSystem()


@pytest.fixture
def answers():
    """Makes a stub transport that gives these answers in turn (an exception is raised) and keeps the requests."""

    def make(*script):
        seen = []
        left = list(script)

        def handle(request):
            seen.append(request)
            given = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(given, Exception):
                raise given
            status, body, *headers = given
            return httpx.Response(status, content=json.dumps(body), headers=dict(headers))

        return httpx.MockTransport(handle), seen

    return make
