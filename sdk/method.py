"""One public method: from JSON bytes to checked arguments, from the result to JSON bytes.

Everything that can be decided from the signature is decided once, when the class is loaded; a call then costs one
msgspec decode. A body is an array (positional), an object (keywords) or empty (no arguments).
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from domicile import jsons
from domicile.errors import BadArguments, BadRequest, MethodFailed
from domicile.marks import READ_MARK
from domicile.signature import Signature

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A method as the interface sees it: call `function(instance, *args, **kwargs)` with what `decode` gives.

    `decode` raises BadRequest (no JSON, or neither array nor object) and BadArguments (what does not fit, and where).
    `encode` raises MethodFailed for a result that is not what the annotation says or that JSON cannot carry; it has to
    be called before the transaction commits.
    """

    name: str
    function: Callable[..., Any]
    is_async: bool
    is_read: bool
    decode: Callable[[bytes], Arguments]
    encode: Callable[[Any], bytes]


def build(name: str, function: Callable[..., Any]) -> MethodSpec:
    """Raises TypeError, saying why, when the signature or an annotation cannot be served."""
    signature = Signature.of(function)
    return MethodSpec(
        name=name,
        function=function,
        is_async=inspect.iscoroutinefunction(function),
        is_read=bool(getattr(function, READ_MARK, False)),
        decode=_decoder(name, signature),
        encode=_encoder(name, signature.returns),
    )


def _decoder(name: str, signature: Signature) -> Callable[[bytes], Arguments]:
    positional, keywords, empty = signature.positional(), signature.keywords(), signature.empty()

    def decode(body: bytes) -> Arguments:
        first = body[:1]
        if first not in (b"[", b"{"):
            first = body.lstrip(b" \t\r\n")[:1]
        try:
            if first == b"[":
                return positional(body)
            if first == b"{":
                return keywords(body)
            if not first:
                return empty(body)
        except msgspec.ValidationError as error:
            raise BadArguments(f"{name}: {error}", method=name) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(f"the body is not JSON: {error}") from None
        except RecursionError:
            raise BadRequest("the body is nested too deeply") from None
        jsons.decode(body)
        raise BadRequest("the body must be a JSON array (positional arguments), an object (keywords) or empty")

    return decode


def _encoder(name: str, returns: Any) -> Callable[[Any], bytes]:
    classes = _top_classes(returns)

    def encode(result: Any) -> bytes:
        if classes is not None and not isinstance(result, classes):
            raise _bad_result(name, f"returned {type(result).__name__}, not {_shown(returns)} as annotated")
        try:
            return jsons.encode(result)
        except jsons.Unencodable as error:
            raise _bad_result(name, f"returned what JSON cannot carry: {error}") from None

    return encode


def _bad_result(name: str, text: str) -> MethodFailed:
    return MethodFailed(f"{name} {text}", type="TypeError", message=f"{name} {text}")


def _shown(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _top_classes(annotation: Any) -> tuple[type, ...] | None:
    """Classes a result may be an instance of, by its outermost type only; None where that is not cheap to say."""
    if annotation is None or annotation is types.NoneType:
        return (types.NoneType,)
    if annotation is float:
        return (float, int)
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _top_classes(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        parts = [_top_classes(part) for part in typing.get_args(annotation)]
        return None if None in parts else tuple(cls for part in parts if part for cls in part)
    plain = origin or annotation
    if typing.is_typeddict(plain):
        return (dict,)
    if plain is Any or not isinstance(plain, type):
        return None
    # A list and a tuple are one JSON array: nothing to insist on.
    return (list, tuple) if plain in (list, tuple) else (plain,)
