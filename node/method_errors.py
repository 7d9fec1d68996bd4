"""The exception of an object's method, as its caller may see it: type and message, no trace and no path (API, HTTP)."""

from __future__ import annotations

import re

from domicile.errors import MethodFailed

MESSAGE_CHARS_MAX = 1000

_ROOTS = (
    "app|bin|code|data|etc|home|lib|lib64|mnt|nix|opt|private|proc|root|run|srv|sys|tmp|usr|var|work|workspace|Users"
)
_PATH = re.compile(rf"(?<![\w:/.])/(?:{_ROOTS})(?:/[^\s'\":,;()\[\]<>]+)+")


def method_failed(error: BaseException) -> MethodFailed:
    """Give the error a caller sees. Paths of this machine in the message become <path>."""
    name = type(error).__name__[:MESSAGE_CHARS_MAX]
    message = _PATH.sub("<path>", _message(error))
    if len(message) > MESSAGE_CHARS_MAX:
        message = message[: MESSAGE_CHARS_MAX - 1] + "…"
    return MethodFailed(f"{name}: {message}" if message else name, type=name, message=message)


def _message(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return str(error.strerror)
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  __str__ is user code as well
        return ""
    return text.encode(errors="replace").decode()
