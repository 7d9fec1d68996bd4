"""Names in URLs: percent-encoded segments of the raw path, each decoded exactly once (API, "HTTP").

    /v1/acme/objects/Auction/a%2Fb/bid     the name a/b
    /v1/acme/objects/Auction/a%252Fb/bid   the name a%2Fb

Nothing is normalized: `.`, `..`, `+`, letter case and Unicode forms are the caller's. A trailing slash makes one more,
empty, segment, and so names nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from domicile.errors import BadName, BadRequest, NoSuchMethod
from domicile.placement.records import CLASS_RE, PROJECT_RE, RESERVED_PROJECTS, ObjectKey

CALL_SEGMENTS = 7  # "", v1, project, objects, class, name, method
TARGETS_REMEMBERED = 4096
_BROKEN_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def decode_segment(raw: bytes) -> str:
    """One segment as text. Raises BadRequest for a broken escape, BadName for bytes that are not UTF-8."""
    if not raw.isascii() or b"#" in raw:
        raise BadRequest("a path has only ASCII characters without #; others are percent-encoded UTF-8")
    if b"%" not in raw:
        return raw.decode("ascii")
    if _BROKEN_PERCENT.search(raw):
        raise BadRequest("a % in the path is not followed by two hexadecimal digits")
    try:
        return unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        raise BadName("a name in the path is not UTF-8") from None


def is_call(raw_path: bytes) -> bool:
    """Whether the path has the shape of a call's, whatever its names are."""
    parts = raw_path.split(b"/")
    return len(parts) == CALL_SEGMENTS and parts[1] == b"v1" and parts[3] == b"objects" and not parts[0]


@lru_cache(maxsize=TARGETS_REMEMBERED)
def call_target(raw_path: bytes) -> tuple[ObjectKey, str]:
    """The object and the method of a call's path, which `is_call`.

    Remembered, since the same objects are called again and their keys carry their ids. Raises BadRequest, BadName,
    NoSuchMethod.
    """
    _, _, project, _, cls, name, method = raw_path.split(b"/")
    return object_key(project, cls, name), method_name(method)


def object_key(raw_project: bytes, raw_class: bytes, raw_name: bytes) -> ObjectKey:
    """The object three raw segments name. Raises BadRequest, BadName."""
    return ObjectKey.checked(decode_segment(raw_project), decode_segment(raw_class), decode_segment(raw_name))


def method_name(raw: bytes) -> str:
    """A method's name. Raises NoSuchMethod for what could not be one."""
    method = decode_segment(raw)
    if not CLASS_RE.fullmatch(method):
        raise NoSuchMethod("a method's name is an identifier of at most 64 characters")
    return method


def project_id(raw: bytes) -> str:
    """A project's id (no script's). Raises BadRequest, BadName."""
    project = decode_segment(raw)
    if not PROJECT_RE.fullmatch(project) or project in RESERVED_PROJECTS:
        raise BadName(f"{project!r} is not a project id: [a-z0-9][a-z0-9-]{{0,62}}, and not a reserved word")
    return project
