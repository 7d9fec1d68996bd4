"""The examples do what their docstrings say, over a real SQLite."""

from pathlib import Path

import pytest

from domicile.object import bind
from domicile.registry import load

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def wake(make_context):
    """Wakes an object of an example as a node does: migrations, then `init`. Gives its context and a way to call it."""

    def woken(app, cls, name):
        spec = load(str(EXAMPLES / app)).find(cls)
        context = make_context(cls=cls, name=name)
        for migration in spec.migrations:
            context.sql.db.executescript(migration.sql)
        instance = bind(spec.type, context)
        instance.init()

        def call(method, body=b""):
            found = spec.method(method)
            args, kwargs = found.decode(body)
            return found.encode(found.function(instance, *args, **kwargs))

        return context, call, instance

    return woken


def test_counter(wake):
    """Incrementing with `[]` answers 1, then 2."""
    _, call, _ = wake("counter.py", "Counter", "a")

    assert [call("increment", b"[]"), call("increment", b"[]"), call("increment", b'{"by": 40}')] == [b"1", b"2", b"42"]
    assert call("read") == b"42"


def test_auction(wake):
    """Higher bids win, the alarm closes the lot and tells the winner's object, and a closed lot takes no bid."""
    context, call, lot = wake("auction.py", "Auction", "lot-42")

    assert call("bid", b'["ada", 25]') == b'{"ok":true,"high":25}'
    assert call("bid", b'{"user": "grace", "amount": 25}') == b'{"ok":false,"high":25}'
    assert call("bid", b'["grace", 30]') == b'{"ok":true,"high":30}'
    assert context.armed["default"].due_ms == context.now + 600_000

    lot.on_alarm()

    assert context.calls == [("Winnings", "grace", "add", b'["lot-42",30]')]
    assert call("bid", b'["ada", 99]') == b'{"ok":false,"high":30}'
    assert call("state") == b'{"closed":true,"high":{"user":"grace","amount":30},"bids":2}'


def test_winnings(wake):
    """What was won is listed by lot."""
    _, call, _ = wake("auction.py", "Winnings", "grace")

    call("add", b'["lot-42", 30]')
    call("add", b'["lot-42", 30]')

    assert call("lots") == b'{"lot-42":30}'
