"""A method's signature turned into decoders for the two forms of a body.

The common shapes cost one typed decode into a tuple or a struct. `*args` and `**kwargs` beside other parameters take a
slower road: the body is split into raw pieces, each decoded by its own type.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

Body = Callable[[bytes], tuple[tuple[Any, ...], dict[str, Any]]]
_EMPTY = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter with its resolved annotation; `Any` where there is none."""

    name: str
    kind: Any
    type: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is _EMPTY

    def field(self) -> tuple[str, Any] | tuple[str, Any, Any]:
        """For msgspec.defstruct. The default is the very object the function has, as in a call without it."""
        if self.required:
            return (self.name, self.type)
        return (self.name, self.type, msgspec.field(default_factory=lambda: self.default))


@dataclass(frozen=True, slots=True)
class Signature:
    """Parameters after `self`, sorted by how they can be given."""

    receiver: str
    ordered: tuple[Parameter, ...]
    keyword_only: tuple[Parameter, ...]
    rest: Parameter | None
    extra: Parameter | None
    returns: Any

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Signature:
        """Raises TypeError for annotations that cannot be resolved or that JSON cannot carry."""
        found = list(inspect.signature(function).parameters.values())
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if not found or found[0].kind not in positional:
            raise TypeError("the first parameter must be self")
        hints = _hints(function)
        parameters = [Parameter(p.name, p.kind, hints.get(p.name, Any), p.default) for p in found[1:]]
        returns = hints.get("return", Any)
        for what, annotation in [*((p.name, p.type) for p in parameters), ("the result", returns)]:
            if why := unsupported(annotation):
                raise TypeError(f"the annotation of {what} is not supported: {why}")
        return cls(
            receiver=found[0].name,
            ordered=tuple(p for p in parameters if p.kind in positional),
            keyword_only=tuple(p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY),
            rest=next((p for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), None),
            extra=next((p for p in parameters if p.kind is inspect.Parameter.VAR_KEYWORD), None),
            returns=returns,
        )

    def positional(self) -> Body:
        """Decoder of a JSON array."""
        if missing := [p.name for p in self.keyword_only if p.required]:
            return _refuse(f"{', '.join(missing)} can be given by keyword only: send an object, not an array")
        if self.rest is None:
            return _fixed(self.ordered)
        if not self.ordered:
            return _all_rest(self.rest)
        return _fixed_then_rest(self.ordered, self.rest)

    def keywords(self) -> Body:
        """Decoder of a JSON object."""
        hidden = [p for p in self.ordered if p.kind is inspect.Parameter.POSITIONAL_ONLY]
        if missing := [p.name for p in hidden if p.required]:
            return _refuse(f"{', '.join(missing)} can be given by position only: send an array, not an object")
        named = (*(p for p in self.ordered if p not in hidden), *self.keyword_only)
        return _named(named) if self.extra is None else _named_and_extra(named, self.extra, self.receiver)

    def empty(self) -> Body:
        """Decoder of an empty body: no arguments, where that is a call."""
        if missing := [p.name for p in (*self.ordered, *self.keyword_only) if p.required]:
            return _refuse(f"missing {', '.join(missing)}")
        return lambda _: ((), {})


def required(function: Callable[..., Any]) -> list[str]:
    """Names of the parameters, `self` included, that a call has to give."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is _EMPTY and p.kind not in variable]


def unsupported(annotation: Any) -> str | None:
    """Why msgspec cannot carry the type as JSON, or None if it can."""
    try:
        info = msgspec.inspect.type_info(annotation)
    except (TypeError, ValueError, NameError) as error:
        return str(error)
    custom = _find(info, (msgspec.inspect.CustomType, msgspec.inspect.ExtType), set())
    return None if custom is None else f"{getattr(custom, 'cls', annotation)!r} has no JSON form"


def _find(info: Any, wanted: tuple[type, ...], seen: set[int]) -> Any:
    """The first node of one of the wanted types in msgspec's description of a type."""
    if isinstance(info, wanted):
        return info
    if id(info) in seen:
        return None
    seen.add(id(info))
    children: list[Any] = []
    if isinstance(info, (msgspec.inspect.Type, msgspec.inspect.Field)):
        children = [getattr(info, name) for name in info.__struct_fields__ if name not in ("default", "cls")]
    elif isinstance(info, (tuple, list)):
        children = list(info)
    return next((found for child in children if (found := _find(child, wanted, seen)) is not None), None)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise TypeError(f"an annotation cannot be resolved: {error}") from error


def _refuse(why: str) -> Body:
    def refuse(body: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if body.strip(b" \t\r\n"):
            msgspec.json.decode(body)
        raise msgspec.ValidationError(why)

    return refuse


def _fixed(parameters: tuple[Parameter, ...]) -> Body:
    if all(p.required for p in parameters):
        decode = msgspec.json.Decoder(tuple[tuple(p.type for p in parameters)]).decode  # type: ignore[misc]
        return lambda body: (decode(body), {})
    fields = [p.field() for p in parameters]
    shape = msgspec.defstruct("Arguments", fields, array_like=True, forbid_unknown_fields=True)
    decode_shape, astuple = msgspec.json.Decoder(shape).decode, msgspec.structs.astuple
    return lambda body: (astuple(decode_shape(body)), {})


def _all_rest(rest: Parameter) -> Body:
    decode = msgspec.json.Decoder(tuple[rest.type, ...]).decode  # type: ignore[name-defined]
    return lambda body: (decode(body), {})


def _fixed_then_rest(ordered: tuple[Parameter, ...], rest: Parameter) -> Body:
    split = msgspec.json.Decoder(list[msgspec.Raw]).decode
    decoders = [msgspec.json.Decoder(p.type).decode for p in ordered]
    rest_decode = msgspec.json.Decoder(rest.type).decode
    required = sum(p.required for p in ordered)

    def positional(body: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        pieces = split(body)
        if len(pieces) < required:
            raise msgspec.ValidationError(f"Expected `array` of at least length {required}, got {len(pieces)}")
        args = [
            _piece(decoders[i] if i < len(decoders) else rest_decode, raw, f"[{i}]") for i, raw in enumerate(pieces)
        ]
        return tuple(args), {}

    return positional


def _named(parameters: tuple[Parameter, ...]) -> Body:
    fields = [p.field() for p in parameters]
    shape = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    decode, asdict = msgspec.json.Decoder(shape).decode, msgspec.structs.asdict
    return lambda body: ((), asdict(decode(body)))


def _named_and_extra(parameters: tuple[Parameter, ...], extra: Parameter, receiver: str) -> Body:
    split = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
    decoders = {p.name: msgspec.json.Decoder(p.type).decode for p in parameters}
    extra_decode = msgspec.json.Decoder(extra.type).decode
    required = [p.name for p in parameters if p.required]

    def keywords(body: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        pieces = split(body)
        for name in required:
            if name not in pieces:
                raise msgspec.ValidationError(f"Object missing required field `{name}`")
        if receiver in pieces:
            raise msgspec.ValidationError(f"Object contains unknown field `{receiver}`")
        return (), {name: _piece(decoders.get(name, extra_decode), raw, f".{name}") for name, raw in pieces.items()}

    return keywords


def _piece(decode: Callable[[Any], Any], raw: msgspec.Raw, step: str) -> Any:
    """Decode one argument; an error's path begins at the argument, so the way to it is put in front."""
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        raise msgspec.ValidationError(f"{text} - at `${step}{path.rstrip('`')}`") from None
