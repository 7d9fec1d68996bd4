"""Keys as paths, both ways: no two keys share a path, even on a disk that folds case, and none leaves the root.

Lower-case letters, digits, `-`, `_` and inner dots stay; every other byte of a part is `%` and two hex digits. An empty
part is `%`. A part longer than 200 characters goes on in a folder below, marked by a `%~` at the end. The last part of
a key carries a suffix that no folder can have, so a key may also be the beginning of another.
"""

from __future__ import annotations

import re
from functools import lru_cache

BLOB, REGISTER = "%b", "%r"
SUFFIXES = (BLOB, REGISTER)
KEY_BYTES_MAX = 1024
PARTS_REMEMBERED = 4096
_PART_MAX = 200
_MORE = "%~"
_ODD = re.compile(rb"^\.|\.$|[^a-z0-9._-]")
_ESCAPE = re.compile("%([0-9a-f]{2})")
_PIECE = re.compile(rf"(?:%[0-9a-f]{{2}}|[^%]){{1,{_PART_MAX // 3}}}")


def path_of(key: str) -> str:
    """The relative path of a key, without suffix. Raises ValueError unless the key is 1 to 1,024 bytes of ASCII."""
    if not key.isascii() or not 1 <= len(key) <= KEY_BYTES_MAX:
        raise ValueError(f"a blob key is 1 to {KEY_BYTES_MAX} ASCII characters: {key[:80]!r}")
    return "/".join(map(_encode, key.split("/")))


def key_of(path: str) -> str:
    """The key whose path, without suffix, this is."""
    return "/".join(_decode(part) for part in path.replace(_MORE + "/", "").split("/"))


def folder_of(prefix: str) -> str:
    """The deepest folder that holds every key with this prefix."""
    parts = prefix.split("/")[:-1]
    return "/".join(_encode(part) for part in parts)


@lru_cache(maxsize=PARTS_REMEMBERED)
def _encode(part: str) -> str:
    if not part:
        return "%"
    text = _ODD.sub(lambda odd: b"%%%02x" % odd[0][0], part.encode("ascii")).decode("ascii")
    return text if len(text) <= _PART_MAX else (_MORE + "/").join(_PIECE.findall(text))


def _decode(text: str) -> str:
    return "" if text == "%" else _ESCAPE.sub(lambda hexed: chr(int(hexed[1], 16)), text)
