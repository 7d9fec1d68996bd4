"""What an object sees of its node, and how it calls others."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from domicile.context import PAYLOAD_BYTES_MAX
from domicile.errors import BadArguments, BadName, DomicileError, NoSuchMethod
from domicile.object import Object, bind


class Other(Object):
    def bid(self, user: str, amount: int = 1) -> dict[str, int]:
        return {user: amount}

    def mixed(self, a: int, /, b: int, *, c: int) -> int:
        return a + b + c

    def many(self, a: int, *rest: int, **more: int) -> Any: ...

    def _hidden(self) -> None: ...


class Thing(Object):
    def __init__(self) -> None:
        self.seen_at_init = self.name

    def ask(self, cls, method, *args, **kwargs):
        return getattr(self.object(cls, "x"), method)(*args, **kwargs)

    async def ask_later(self):
        return await self.object(Other, "x").bid("ada")

    def on_alarm(self) -> None: ...


class Quiet(Object):
    pass


def test_bound_before_init(context):
    """`__init__` has the name already; the instance has its node's database, map, clock and log."""
    thing = bind(Thing, context)

    assert thing.seen_at_init == "a"
    assert (thing.sql, thing.kv, thing.log, thing.now()) == (context.sql, context.kv, context.log, context.now)


def test_an_inner_transaction_is_undone_alone(context):
    """An exception that leaves `tx` undoes the block; what was before and what comes after stays (field case 80)."""
    sql = bind(Thing, context).sql
    sql.exec("CREATE TABLE t (n INTEGER)")

    with sql.tx():
        sql.exec("INSERT INTO t VALUES (1)")
        with pytest.raises(ValueError, match="inner"), sql.tx():  # noqa: PT012 - the block is what is tested
            sql.exec("INSERT INTO t VALUES (2)")
            raise ValueError("inner")
        sql.exec("INSERT INTO t VALUES (3)")

    assert sql.query("SELECT n FROM t") == [{"n": 1}, {"n": 3}]


def test_alarms(context):
    """Alarms carry name, time, payload and cron, and are listed by due time."""
    thing = bind(Thing, context)

    thing.set_alarm("10m")
    thing.set_alarm(5, name="soon", payload={"try": 1})
    thing.set_alarm(datetime(2030, 1, 1, tzinfo=UTC), "later")
    thing.set_alarm(name="nightly", cron="0 3 * * *")

    soon, *_ = thing.alarms()
    assert (soon.name, soon.due_ms, soon.payload) == ("soon", context.now + 5_000, {"try": 1})
    assert context.armed["default"].payload is None
    assert context.armed["default"].due_ms == context.now + 600_000
    assert context.armed["nightly"].cron == "0 3 * * *"
    assert context.armed["later"].due_ms == 1_893_456_000_000
    assert thing.clear_alarm("soon") is True
    assert thing.clear_alarm("soon") is False
    assert thing.clear_alarm() is True


@pytest.mark.parametrize(
    "given",
    [
        {"when": "soon"},
        {"when": "1m", "name": ""},
        {"when": "1m", "name": "x" * 256},
        {"when": "1m", "name": 3},
        {"when": "1m", "name": "\ud800"},
        {"when": "1m", "name": "a\0b"},
        {"when": "1m", "payload": object()},
        {"when": "1m", "payload": float("nan")},
        {"when": "1m", "payload": "x" * PAYLOAD_BYTES_MAX},
        {},
        {"when": "1m", "cron": "* * * * *"},
        {"cron": "0 0 30 2 *"},
    ],
)
def test_bad_alarms_are_refused(context, given):
    """A bad time, name or payload is BadArguments, and nothing is armed."""
    with pytest.raises(BadArguments):
        bind(Thing, context).set_alarm(**given)

    assert context.armed == {}


def test_an_alarm_nobody_would_hear(context):
    """A class without `on_alarm` cannot arm one."""
    with pytest.raises(BadArguments, match="no on_alarm"):
        bind(Quiet, context).set_alarm("1m")


def test_a_call_to_another_object(context):
    """A call goes out as JSON and its result comes back typed by the annotation."""
    context.answer = b'{"ada":25}'

    assert bind(Thing, context).ask(Other, "bid", "ada", 25) == {"ada": 25}
    assert context.calls == [("Other", "x", "bid", b'["ada",25]')]


def test_a_call_from_an_async_method(context):
    """Where the context gives an awaitable, so does the reference."""

    async def answer():
        return b'{"ada":1}'

    context.answer = answer()

    assert asyncio.run(bind(Thing, context).ask_later()) == {"ada": 1}


@pytest.mark.parametrize(
    ("cls", "method", "args", "kwargs", "body"),
    [
        (Other, "bid", (), {"user": "a"}, b'{"user":"a"}'),
        (Other, "bid", ("a",), {"amount": 2}, b'["a",2]'),
        (Other, "many", (1, 2, 3), {}, b"[1,2,3]"),
        (Other, "many", (1,), {"z": 2}, b'{"a":1,"z":2}'),
        ("Other", "bid", ("a", 2), {}, b'["a",2]'),
        ("Other", "bid", (), {"x": 1}, b'{"x":1}'),
        ("Other", "bid", (), {}, b"[]"),
    ],
)
def test_forms_of_arguments(context, cls, method, args, kwargs, body):
    """Positional and keyword arguments become one JSON body; a known class lets them be mixed."""
    context.answer = b"{}"
    bind(Thing, context).ask(cls, method, *args, **kwargs)

    assert context.calls[0][3] == body


@pytest.mark.parametrize(
    ("cls", "method", "args", "kwargs", "error"),
    [
        (Other, "bid", (), {}, BadArguments),
        (Other, "bid", ("a", 1, 2), {}, BadArguments),
        (Other, "bid", ("a",), {"user": "b"}, BadArguments),
        (Other, "bid", (object(),), {}, BadArguments),
        (Other, "mixed", (1, 2), {"c": 3}, BadArguments),
        (Other, "many", (1, 2), {"z": 2}, BadArguments),
        ("Other", "bid", ("a",), {"amount": 1}, BadArguments),
        ("Other", "bid", (float("inf"),), {}, BadArguments),
        (Other, "nothing", (), {}, NoSuchMethod),
        (Other, "migrations", (), {}, NoSuchMethod),
    ],
)
def test_bad_calls_do_not_leave(context, cls, method, args, kwargs, error):
    """What cannot be a call is refused before it is sent."""
    with pytest.raises(error):
        bind(Thing, context).ask(cls, method, *args, **kwargs)

    assert context.calls == []


def test_bad_targets(context):
    """A reference needs a class of objects and a name; private attributes are no methods."""
    thing = bind(Thing, context)

    with pytest.raises(BadArguments):
        thing.object(int, "x")
    with pytest.raises(BadName):
        thing.object(Other, "")
    with pytest.raises(AttributeError):
        _ = thing.object(Other, "x")._hidden


def test_an_answer_of_another_type(context):
    """An answer that the annotation cannot hold is an error, not a surprise later on."""
    context.answer = b'"text"'

    with pytest.raises(DomicileError, match=r"Other\.bid answered"):
        bind(Thing, context).ask(Other, "bid", "ada")
