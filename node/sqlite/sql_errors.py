"""What SQLite says, in the words of `domicile.errors`. The only place that knows apsw's exceptions."""

from __future__ import annotations

import apsw

from domicile.errors import DatabaseFull, DomicileError, NotServing, SqlError, SqlRefused
from domicile.node.errors import Corrupt, NodeError
from domicile.node.sqlite.live_bytes import StorageFailed
from domicile.node.sqlite.paged_vfs import PageUnavailable
from domicile.node.sqlite.temp_vfs import TempSpace

FOREIGN = (apsw.Error, TypeError, KeyError, OverflowError, UnicodeError, MemoryError)
"""Everything a statement run through apsw may raise on its own account: its errors, and those of binding values."""

_BROKEN = (
    apsw.IOError,
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.CantOpenError,
    apsw.NoMemError,
    apsw.InternalError,
    apsw.ProtocolError,
    MemoryError,
)


def is_fatal(error: BaseException) -> bool:
    """Whether the whole call is lost with this error, even where SQLite left the transaction open."""
    return isinstance(error, (apsw.FullError, *_BROKEN))


def is_broken(error: BaseException) -> bool:
    """Whether the file or the machine failed, not the SQL. A page that has yet to come is no such thing."""
    return isinstance(error, _BROKEN) and not isinstance(error, PageUnavailable)


def unopened(path: str, error: apsw.Error) -> NodeError:
    """Why a file cannot be opened."""
    if isinstance(error, PageUnavailable):
        return error.cause
    return (Corrupt if isinstance(error, apsw.NotADBError | apsw.CorruptError) else StorageFailed)(f"{path}: {error}")


def translate(error: BaseException) -> DomicileError:
    """Give the error a caller sees, with SQLite's own words in the detail."""
    if isinstance(error, TempSpace):
        return SqlError(f"{error}; sort or index less at a time")
    if isinstance(error, apsw.FullError):
        return DatabaseFull("the object's database is full; reads and deletes go on working in the next call")
    if is_broken(error) or isinstance(error, PageUnavailable):
        broken = NotServing(f"the object's database cannot be used here: {_words(error)}")
        broken.outcome = "ran"
        return broken
    if isinstance(error, apsw.AuthError):
        return SqlRefused(f"this SQL is not allowed in an object: {_words(error)}")
    if isinstance(error, apsw.Error):
        if "VACUUM" in str(error):
            return SqlRefused("VACUUM cannot run in an object: free pages are used again by later writes")
        return SqlError(_words(error), sqlite_code=getattr(error, "extendedresult", 1))
    return _value_error(error)


def _value_error(error: BaseException) -> SqlError:
    match error:
        case OverflowError():
            return SqlError("an integer parameter does not fit in 64 bits")
        case UnicodeEncodeError():
            return SqlError("a text parameter holds a lone surrogate, which UTF-8 cannot store")
        case UnicodeDecodeError():
            return SqlError("a text value read is not UTF-8; CAST it to BLOB to read its bytes")
        case KeyError():
            return SqlError(f"there is no value for the named parameter {error.args[0]!r}")
        case _:
            return SqlError(f"{error}; SQLite stores text, numbers, bytes and None, given one by one or in one dict")


def _words(error: BaseException) -> str:
    text = str(error).strip()
    return text.removeprefix("Error: ") or type(error).__name__
