"""JSON text in and out, with one defined answer for everything JSON cannot carry.

In: NaN and infinity are no JSON, numbers past a float's range and integers past 4,300 digits are refused, a lone
surrogate is refused, nesting deeper than the interpreter's limit (about 1,000) is refused. Integers of any size between
are exact. A key given twice counts the last time. Out: the same, each a `ValueError` or `TypeError` that says what.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from domicile.errors import BadRequest

_encode = msgspec.json.Encoder().encode


class Unencodable(ValueError):
    """The value cannot be written as JSON; the text says why."""


def encode(value: Any) -> bytes:
    """JSON text of what msgspec can carry. Raises Unencodable."""
    try:
        text = _encode(value)
        # msgspec writes NaN and infinity as null, which would be another value at the other end. Only a text with
        # a null can hide one, so only then is the value searched.
        if b"null" in text and (found := _not_finite(msgspec.to_builtins(value), "$")):
            raise Unencodable(f"JSON has no NaN and no infinity - at `{found}`")
    except RecursionError:
        raise Unencodable("nested too deeply") from None
    except UnicodeEncodeError:
        raise Unencodable("a text with a lone surrogate is no Unicode") from None
    except (TypeError, OverflowError, msgspec.ValidationError) as error:
        raise Unencodable(str(error)) from error
    return text


def decode(text: bytes) -> Any:
    """Any JSON value. Raises BadRequest."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None


def _not_finite(value: Any, path: str) -> str | None:
    """The path of the first NaN or infinity in a tree of builtins, or None."""
    if isinstance(value, float):
        return None if math.isfinite(value) else path
    if isinstance(value, dict):
        return _first(value.values(), path, value.keys())
    if isinstance(value, (list, tuple)):
        return _first(value, path, range(len(value)))
    return None


def _first(values: Any, path: str, keys: Any) -> str | None:
    for key, value in zip(keys, values, strict=True):
        step = f"[{key}]" if isinstance(key, int) else f".{key}"
        if isinstance(value, (float, dict, list, tuple)) and (found := _not_finite(value, path + step)):
            return found
    return None
