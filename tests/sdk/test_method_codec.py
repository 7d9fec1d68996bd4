"""From JSON bytes to arguments and from results to JSON bytes."""

import inspect
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domicile import jsons, marks, method
from domicile.errors import BadArguments, BadRequest, MethodFailed


@dataclass
class Point:
    x: int
    y: int = 0


class Named(TypedDict):
    name: str


class Pair(NamedTuple):
    a: int
    b: int


def plain(self, user: str, amount: int): ...
def defaults(self, user: str, amount: int = 3, *, note: str = "none"): ...
def rest(self, first: int, *others: str): ...
def only_rest(self, *others: int): ...
def extra(self, a: int = 1, **more: float): ...
def positional(self, a: int, b: int = 2, /): ...
def keyword_only(self, *, a: int): ...
def untyped(self, a, b=None): ...
def nothing(self): ...
def point(self, at: Point, tags: list[str]): ...


def spec(function):
    return method.build(function.__name__, function)


@pytest.mark.parametrize(
    ("function", "body", "args", "kwargs"),
    [
        (plain, b'["ada",25]', ("ada", 25), {}),
        (plain, b' \n{"amount":25,"user":"ada"}', (), {"user": "ada", "amount": 25}),
        (defaults, b'["ada"]', ("ada", 3), {}),
        (defaults, b'{"user":"ada","note":"x"}', (), {"user": "ada", "amount": 3, "note": "x"}),
        (rest, b'[1,"a","b"]', (1, "a", "b"), {}),
        (rest, b'{"first":1}', (), {"first": 1}),
        (only_rest, b"[1,2]", (1, 2), {}),
        (only_rest, b"", (), {}),
        (extra, b'{"a":5,"z":1.5}', (), {"a": 5, "z": 1.5}),
        (extra, b"[7]", (7,), {}),
        (positional, b"[1]", (1, 2), {}),
        (keyword_only, b'{"a":1}', (), {"a": 1}),
        (untyped, b'[{"x":[1]}]', ({"x": [1]}, None), {}),
        (nothing, b"", (), {}),
        (nothing, b" \r\n\t", (), {}),
        (nothing, b"[]", (), {}),
        (nothing, b"{}", (), {}),
        (point, b'[{"x":1},["a"]]', (Point(1), ["a"]), {}),
        (plain, b'["a",1]\n', ("a", 1), {}),
        (untyped, b"[123456789012345678901234567890]", (123456789012345678901234567890, None), {}),
        (untyped, b'{"a":1,"a":2}', (), {"a": 2, "b": None}),
    ],
)
def test_decoded(function, body, args, kwargs):
    """Arrays are positional, objects are keywords, nothing is no arguments; defaults stand in."""
    assert spec(function).decode(body) == (args, kwargs)


@pytest.mark.parametrize(
    ("function", "body", "says"),
    [
        (plain, b'["ada"]', "length 2"),
        (plain, b'["ada",1,2]', "length 2"),
        (plain, b'["ada","x"]', "Expected `int`, got `str` - at `$[1]`"),
        (plain, b'{"user":"ada"}', "`amount`"),
        (plain, b'{"user":"ada","amount":1,"x":1}', "`x`"),
        (plain, b'{"user":"ada","amount":1,"self":1}', "`self`"),
        (plain, b"", "missing user, amount"),
        (plain, b"[1e999,1]", "out of range"),
        (plain, b'["a",1.5]', "Expected `int`"),
        (defaults, b'["a",1,"note"]', "length 2"),
        (rest, b"[]", "length 1"),
        (rest, b"[1,2]", "Expected `str`, got `int` - at `$[1]`"),
        (only_rest, b'{"others":[1]}', "`others`"),
        (extra, b'{"z":"x"}', "Expected `float`, got `str` - at `$.z`"),
        (extra, b'{"self":1}', "`self`"),
        (positional, b'{"a":1}', "position only"),
        (keyword_only, b"[1]", "keyword only"),
        (keyword_only, b"", "missing a"),
        (point, b'[{"x":1,"y":"no"},[]]', "$[0].y"),
        (nothing, b"[1]", "length 0"),
        (nothing, b'{"a":1}', "`a`"),
        (untyped, b"[" + b"9" * 5000 + b"]", "out of range"),
    ],
)
def test_bad_arguments_say_what_and_where(function, body, says):
    """Too many, too few, unknown and mistyped arguments name the method, the argument and the mismatch."""
    with pytest.raises(BadArguments) as caught:
        spec(function).decode(body)

    assert says in caught.value.detail
    assert caught.value.detail.startswith(function.__name__)
    assert caught.value.outcome == "not_run"


@pytest.mark.parametrize("function", [plain, rest, extra, untyped, nothing, only_rest, keyword_only, positional])
@pytest.mark.parametrize(
    "body",
    [
        b"null",
        b"1",
        b'"x"',
        b"x",
        b"[",
        b"{",
        b"[1,]",
        b"[NaN]",
        b"[Infinity]",
        b"\xef\xbb\xbf[]",
        b"[] []",
        b"\x00",
        b'["\\ud800"]',
        b'["\xff"]',
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b"[" * 100_000,
        b'[1,"a",' + b"[" * 100_000 + b"]" * 100_000 + b"]",
    ],
)
def test_what_is_no_json_is_refused(function, body):
    """Bad JSON, a bare value, a lone surrogate, NaN and nesting of 100,000 are refusals of the 400 class, no crash."""
    with pytest.raises((BadRequest, BadArguments)) as caught:
        spec(function).decode(body)

    assert 400 <= caught.value.status < 500


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(body):
    """No body makes the decoder fail otherwise."""
    for function in (plain, rest, extra, untyped):
        try:
            args, kwargs = spec(function).decode(body)
        except (BadRequest, BadArguments):
            continue
        inspect.signature(function).bind(None, *args, **kwargs)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, json_values)
def test_arguments_arrive_as_they_were_sent(first, second):
    """What Python's own JSON writes is read back equal, by position and by keyword."""
    by_position = json.dumps([first, second]).encode()
    by_keyword = json.dumps({"a": first, "b": second}, ensure_ascii=False).encode()

    assert spec(untyped).decode(by_position) == ((first, second), {})
    assert spec(untyped).decode(by_keyword) == ((), {"a": first, "b": second})


@given(json_values)
def test_results_arrive_as_they_were_returned(value):
    """What a method returns, Python's own JSON reads back equal."""
    assert json.loads(spec(untyped).encode(value)) == value


def test_a_mutable_default_is_the_functions_own():
    """A default is the very object the function would have used, so decoding changes nothing of its meaning."""
    shared: list[int] = []

    def uses(self, a: int, b: list[int] = shared): ...

    assert spec(uses).decode(b"[1]")[0][1] is shared
    assert spec(uses).decode(b'{"a":1}')[1]["b"] is shared


def returning(annotation):
    def made(self): ...

    made.__annotations__["return"] = annotation
    return spec(made)


@pytest.mark.parametrize(
    ("annotation", "result", "text"),
    [
        (int, 3, b"3"),
        (float, 3, b"3"),
        (None, None, b"null"),
        (dict, {"a": None}, b'{"a":null}'),
        (list[int], (1, 2), b"[1,2]"),
        (int | None, None, b"null"),
        (Any, b"hi", b'"aGk="'),
        (Point, Point(1), b'{"x":1,"y":0}'),
        (Named, {"name": "a"}, b'{"name":"a"}'),
        (Pair, Pair(1, 2), b"[1,2]"),
        (Annotated[int, msgspec.Meta(ge=0)], 1, b"1"),
        (Literal["a"], "a", b'"a"'),
        (set[int], {1}, b"[1]"),
    ],
)
def test_encoded(annotation, result, text):
    """Results that are what the annotation says become JSON."""
    assert returning(annotation).encode(result) == text


@pytest.mark.parametrize(
    ("annotation", "result"),
    [
        (int, "3"),
        (str, None),
        (None, 3),
        (dict, [1]),
        (int | None, "x"),
        (Point, {"x": 1}),
        (Annotated[int, 1], "a"),
        (Named, "x"),
        (Any, object()),
        (Any, float("nan")),
        (Any, {"a": [None, float("-inf")]}),
        (Any, "\ud800"),
        (Any, {"\udfff": 1}),
        (Any, {(1, 2): 3}),
        (Any, (n for n in [1])),
        (Any, 1j),
    ],
)
def test_a_result_that_cannot_leave_fails_the_method(annotation, result):
    """Another type than annotated, or what JSON cannot carry, NaN included, is a failure of the method that says so."""
    with pytest.raises(MethodFailed) as caught:
        returning(annotation).encode(result)

    assert "made returned" in caught.value.detail
    assert caught.value.outcome == "ran"
    assert set(caught.value.extra) == {"type", "message"}


def test_a_result_nested_too_deep_fails_the_method():
    """A result nested 100,000 deep is refused like any other that JSON cannot carry."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(MethodFailed):
        returning(Any).encode(deep)


def test_where_the_infinity_is():
    """The refusal of an infinity leads to it."""
    with pytest.raises(jsons.Unencodable, match=r"at `\$\.rows\[1\]\.x`"):
        jsons.encode({"rows": [None, {"x": float("inf")}]})


def test_marks_and_kind():
    """`@read` and `async def` are seen through."""

    @marks.read
    async def look(self) -> int: ...

    found = spec(look)
    assert (found.is_read, found.is_async) == (True, True)
    assert (spec(plain).is_read, spec(plain).is_async) == (False, False)
    assert found.encode(1) == b"1"


@pytest.mark.parametrize(
    "annotation", [object, complex, "Nowhere", list[int] | tuple[int], dict[str, type[int]], "1 +"]
)
def test_unsupported_annotations_are_found_at_load(annotation):
    """An annotation that msgspec cannot carry as JSON, or that names nothing, is refused before any call."""

    def bad(self, a): ...

    bad.__annotations__["a"] = annotation
    with pytest.raises(TypeError, match="annotation"):
        spec(bad)
