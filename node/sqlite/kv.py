"""`self.kv`: a small durable map beside the object's tables, for what is not worth a table."""

from __future__ import annotations

from typing import Any

import msgspec

from domicile.context import KV_VALUE_BYTES_MAX
from domicile.errors import BadArguments
from domicile.node.sqlite.sql import SqlApi

KEY_BYTES_MAX = 1024

_GET = "SELECT value FROM _domicile_kv WHERE key = ?"
_PUT = "INSERT OR REPLACE INTO _domicile_kv(key, value) VALUES (?, ?)"
_DELETE = "DELETE FROM _domicile_kv WHERE key = ? RETURNING 1"
_LIST_ALL = "SELECT key, value FROM _domicile_kv ORDER BY key"
_LIST = "SELECT key, value FROM _domicile_kv WHERE key >= ? AND key < CAST(? AS TEXT) ORDER BY key"


class KvApi:
    """Keys are text, values what JSON can carry, up to 64 KiB each. Part of the call's transaction."""

    def __init__(self, sql: SqlApi) -> None:
        self._sql = sql

    def get(self, key: str, default: Any = None) -> Any:
        """Give the value under `key`, or `default`."""
        rows = self._sql.read(_GET, (_checked(key),))
        return msgspec.json.decode(rows[0][0]) if rows else default

    def put(self, key: str, value: Any) -> None:
        """Set `key`. Raises BadArguments over 64 KiB and for what JSON cannot carry, DatabaseFull."""
        try:
            data = msgspec.json.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise BadArguments(f"the value for {key!r} is nothing JSON can carry: {error}") from error
        if len(data) > KV_VALUE_BYTES_MAX:
            raise BadArguments(
                f"a value in self.kv may have {KV_VALUE_BYTES_MAX} bytes of JSON, this one has {len(data)}"
            )
        self._sql.write(_PUT, (_checked(key), data))

    def delete(self, key: str) -> bool:
        """Remove `key`, and tell whether it was there."""
        return bool(self._sql.write(_DELETE, (_checked(key),)))

    def list(self, prefix: str = "") -> dict[str, Any]:
        """Give all keys that begin with `prefix`, in byte order, with their values."""
        if not prefix:
            rows = self._sql.read(_LIST_ALL)
        else:
            # The last byte of UTF-8 is never 0xFF, so the first key beyond the prefix is one byte higher.
            raw = _checked(prefix).encode()
            beyond = raw[:-1] + bytes([raw[-1] + 1])
            rows = self._sql.read(_LIST, (prefix, beyond))
        return {key: msgspec.json.decode(value) for key, value in rows}


def _checked(key: str) -> str:
    if not isinstance(key, str) or not key:
        raise BadArguments("a key in self.kv is a text that is not empty")
    if len(key.encode(errors="surrogatepass")) > KEY_BYTES_MAX:
        raise BadArguments(f"a key in self.kv may have {KEY_BYTES_MAX} bytes")
    return key
