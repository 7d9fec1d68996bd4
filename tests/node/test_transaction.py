"""One transaction around one call: what lasts, what is undone, and what the caller is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from numbers_kept import ids, put

from domicile.errors import MethodFailed, Moving
from domicile.node.errors import Ended


def test_a_call_lasts_as_a_whole(thing: Any) -> None:
    """A call that ends well is committed; its Done says that it wrote."""
    done = thing.call(lambda: put(thing, 1))
    assert (done.answer, done.error, done.wrote, done.replayed) == (b"1", None, True, False)
    assert ids(thing) == [1]


def test_a_call_that_changes_nothing_ships_nothing(thing: Any) -> None:
    """Reading, and an update that meets no row, makes no frame."""
    length = thing.db.length
    assert not thing.call(lambda: thing.sql.query("SELECT * FROM t")).wrote
    assert not thing.call(lambda: thing.sql.exec("UPDATE t SET b = 1 WHERE i = 77")).wrote
    assert thing.db.length == length


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), KeyboardInterrupt(), SystemExit(3), GeneratorExit(), asyncio.CancelledError(), StopIteration()],
)
def test_whatever_a_method_raises_undoes_it(thing: Any, error: BaseException) -> None:
    """No exception of a method ends the node, keeps a row or shows a trace."""

    def method() -> None:
        put(thing, 1)
        thing.kv.put("k", 1)
        raise error

    async def method_async() -> None:
        method()

    for done in (thing.call(method), asyncio.run(thing.call_async(method_async))):
        if isinstance(error, StopIteration) and done.error.extra["type"] == "RuntimeError":
            continue  # Python's own rule for coroutines
        assert isinstance(done.error, MethodFailed)
        assert done.error.extra == {"type": type(error).__name__, "message": str(error)}
        assert not done.wrote
    assert ids(thing) == []
    assert not thing.db.in_transaction


def test_messages_are_bounded_and_show_no_paths(thing: Any) -> None:
    """A caller sees type and message, cut, and nothing of this machine."""

    def opening() -> None:
        open("/nonexistent/place/secret.txt")  # noqa: SIM115

    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def raising(error: Exception) -> Callable[[], None]:
        def method() -> None:
            raise error

        return method

    assert thing.call(opening).error.extra["message"] == "No such file or directory"
    assert thing.call(raising(ImportError("x (/usr/lib/python3/x.py)"))).error.extra["message"] == "x (<path>)"
    assert thing.call(raising(ValueError("no /v1/orders"))).error.extra["message"] == "no /v1/orders"
    assert len(thing.call(raising(ValueError("x" * 5000))).error.extra["message"]) == 1000
    assert thing.call(raising(Odd())).error.detail == "Odd"
    assert thing.call(raising(ValueError("\ud800"))).error.detail == "ValueError: ?"


def test_errors_of_the_tree_keep_their_type(thing: Any) -> None:
    """What another object answered, and was not caught, is this call's answer."""

    def method() -> None:
        put(thing, 1)
        raise Moving

    assert isinstance(thing.call(method).error, Moving)
    assert ids(thing) == []


def test_internal_errors_end_the_group(thing: Any) -> None:
    """An error of the node is no method's: it goes to the residency, and nothing stays open."""

    def method() -> None:
        put(thing, 1)
        raise Ended

    with pytest.raises(Ended):
        thing.group(lambda: put(thing, 2), method)
    assert not thing.db.in_transaction
    assert ids(thing) == []
