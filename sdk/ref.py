"""References from one object to another: `self.object(Other, "x").bid("ada", 25)`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from domicile import jsons
from domicile.errors import BadArguments, DomicileError, NoSuchMethod
from domicile.signature import Signature

if TYPE_CHECKING:
    from domicile.context import Context
    from domicile.object import Object


_ANY = msgspec.json.Decoder(Any)


@lru_cache(maxsize=1024)
def _result_decoder(function: Callable[..., Any]) -> msgspec.json.Decoder[Any]:
    try:
        return msgspec.json.Decoder(Signature.of(function).returns)
    except TypeError as error:
        raise BadArguments(f"{function.__qualname__}: {error}") from None


class Target:
    """A class as a caller knows it: its name alone, or the class itself, whose signatures then help."""

    __slots__ = ("cls", "name")

    def __init__(self, cls: type[Object] | str) -> None:
        self.cls = cls if isinstance(cls, type) else None
        self.name = cls if isinstance(cls, str) else cls.__name__

    def encode(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """The JSON body of a call. Raises BadArguments, NoSuchMethod."""
        if self.cls is not None:
            args, kwargs = self._bound(method, args, kwargs)
        if args and kwargs:
            raise BadArguments(f"{method}: give all arguments by position or all by keyword")
        try:
            return jsons.encode(kwargs or args)
        except jsons.Unencodable as error:
            raise BadArguments(f"{method}: {error}") from None

    def decode(self, method: str, body: bytes) -> Any:
        """The result, typed by the method's return annotation where the class is known. Raises DomicileError."""
        decoder = _ANY if self.cls is None else _result_decoder(self._function(method))
        try:
            return decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DomicileError(f"{self.name}.{method} answered what {decoder.type} cannot hold: {error}") from None

    def _bound(
        self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """The same arguments in a form one JSON body can carry."""
        try:
            bound = inspect.signature(self._function(method)).bind(None, *args, **kwargs)
        except TypeError as error:
            raise BadArguments(f"{method}: {error}") from None
        if not (args and kwargs):
            return args, dict(kwargs)
        if not bound.kwargs:
            return bound.args[1:], {}
        kinds = {name: p.kind for name, p in bound.signature.parameters.items()}
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
        named = dict(list(bound.arguments.items())[1:])
        if any(kinds[name] in by_position for name in named):
            raise BadArguments(f"{method}: no JSON body carries both positional and keyword-only arguments")
        extra: dict[str, Any] = next(
            (named.pop(name) for name in list(named) if kinds[name] is inspect.Parameter.VAR_KEYWORD), {}
        )
        return (), {**named, **extra}

    def _function(self, method: str) -> Callable[..., Any]:
        function = inspect.getattr_static(self.cls, method, None)
        if not inspect.isfunction(function) or method.startswith("_"):
            raise NoSuchMethod(f"{self.name} has no method {method!r}")
        return function


class Ref:
    """Another object, by class and name. Its methods are called like one's own; the call is one of the platform's.

    In a `def` method a call blocks and gives the result; in an `async def` method it gives an awaitable.
    """

    __slots__ = ("_context", "_name", "_target")

    def __init__(self, context: Context, target: Target, name: str) -> None:
        self._context = context
        self._target = target
        self._name = name

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *args, **kwargs: self._call(method, args, kwargs)

    def __repr__(self) -> str:
        return f"Ref({self._target.name}, {self._name!r})"

    def _call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        body = self._target.encode(method, args, kwargs)
        answer = self._context.invoke(self._target.name, self._name, method, body)
        if isinstance(answer, bytes):
            return self._target.decode(method, answer)
        return self._later(method, answer)

    async def _later(self, method: str, answer: Awaitable[bytes]) -> Any:
        return self._target.decode(method, await answer)
