"""The platform's `Database`, over a real SQLite."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domicile import jsons
from domicile.database import Database, from_json, to_json
from domicile.errors import BadArguments, MethodFailed
from domicile.object import bind
from domicile.registry import from_classes

SPEC = from_classes().find("Database")


@pytest.fixture
def call(context):
    """Calls a method with a JSON body and gives the JSON answer."""
    database = bind(Database, context)

    def made(method, body):
        spec = SPEC.method(method)
        args, kwargs = spec.decode(body)
        return spec.encode(spec.function(database, *args, **kwargs))

    made("exec", b'{"sql":"CREATE TABLE t (id INTEGER PRIMARY KEY, v)"}')
    return made


def test_rows_in_and_out(call):
    """Statements and rows are JSON both ways, by position and by name; a blob is `$base64`."""
    assert call("exec", b'{"sql":"INSERT INTO t (v) VALUES (?), (?)","params":[1,{"$base64":"aGk="}]}') == (
        b'{"rows_changed":2}'
    )
    assert call("query", b'{"sql":"SELECT * FROM t ORDER BY id"}') == (
        b'[{"id":1,"v":1},{"id":2,"v":{"$base64":"aGk="}}]'
    )
    assert call("read", b'["SELECT v FROM t WHERE id = :id", {"id": 2}]') == b'[{"v":{"$base64":"aGk="}}]'
    assert call("query_one", b'{"sql":"SELECT v FROM t WHERE id = ?","params":[2]}') == b'{"v":{"$base64":"aGk="}}'
    assert call("read_one", b'{"sql":"SELECT v FROM t WHERE id = 9"}') == b"null"
    assert call("exec", b'{"sql":"DELETE FROM t"}') == b'{"rows_changed":2}'


def test_batch(call):
    """A batch gives each statement's rows."""
    body = b"""{"statements": [
        {"sql": "INSERT INTO t VALUES (1, ?)", "params": [true]},
        {"sql": "INSERT INTO t VALUES (2, :v)", "params": {"v": null}},
        {"sql": "SELECT v FROM t"}
    ]}"""

    assert call("batch", body) == b'[[],[],[{"v":1},{"v":null}]]'


def test_what_is_read_only():
    """`read` and `read_one` are the read-only ones."""
    assert {name for name, spec in SPEC.methods.items() if spec.is_read} == {"read", "read_one"}


@pytest.mark.parametrize(
    "body",
    [
        b'{"sql":1}',
        b'{"sql":"SELECT ?","params":[[1]]}',
        b'{"sql":"SELECT ?","params":[{"a":1}]}',
        b'{"sql":"SELECT ?","params":"x"}',
        b'{"sql":"SELECT ?","params":[9223372036854775808]}',
        b'{"sql":"SELECT ?","params":[{"$base64":"!"}]}',
        b'{"sql":"SELECT ?","params":[{"$base64":"aGk"}]}',
        b'{"sql":"SELECT ?","params":[{"$base64":"aGk=","x":1}]}',
        b'{"sql":"SELECT ?","params":[{"$base64":5}]}',
        b"{}",
        b'{"sql":"SELECT 1","more":1}',
    ],
)
def test_bad_statements(call, body):
    """What is no statement, or no value of SQLite's, is BadArguments."""
    with pytest.raises(BadArguments):
        call("query", body)


def test_an_infinity_in_a_row(call):
    """SQLite has infinities, JSON has none: the call fails and says where."""
    with pytest.raises(MethodFailed, match="infinity"):
        call("query", b'{"sql":"SELECT 9e999 AS x"}')


@given(
    st.none()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary()
)
def test_values_lead_back(value):
    """Every value of SQLite's that JSON can carry comes through JSON as it was."""
    rows = [{"v": to_json(value)}]

    assert from_json(jsons.decode(jsons.encode(rows))) == [{"v": value}]
    assert SPEC.method("query").decode(jsons.encode(["SELECT ?", [to_json(value)]]))[0][1] == [to_json(value)]
