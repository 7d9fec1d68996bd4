"""The directory: which objects a scope has, and which it had (PROTOCOLS section 2).

Rows are written by the claims that create and the deletes that end an object, so a listing wakes nothing. Names come
in the order of their UTF-8 bytes, class by class.
"""

from __future__ import annotations

from dataclasses import dataclass

from domicile.errors import BadRequest, NotServing
from domicile.placement.followed import decode
from domicile.placement.keys import Keys
from domicile.placement.records import DeletedRow, Incarnation, InstanceRow, ObjectKey, next_incarnation
from domicile.placement.store import SCAN_MAX, Page, ScanExpired, Store, StoreUnavailable


@dataclass(frozen=True, slots=True)
class Instance:
    """An object that exists; `created_ms` since 1970."""

    key: ObjectKey
    created_ms: int


@dataclass(frozen=True, slots=True)
class Deletion:
    """An object that was deleted, and the incarnation its next life will have: the delete's epoch."""

    key: ObjectKey
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Instances:
    """A page; `token` asks for the next and is None on the last. A page may be empty and not the last."""

    entries: tuple[Instance, ...]
    token: str | None


@dataclass(frozen=True, slots=True)
class Deletions:
    """As Instances."""

    entries: tuple[Deletion, ...]
    token: str | None


class Directory:
    """Listings of one region, up to 1,000 entries a page, all pages of one snapshot.

    Raise NotServing when the store does not answer, BadRequest for a text that is no token or one too old.
    """

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys

    async def instances(
        self, scope: str, cls: str | None = None, prefix: str = "", token: str | None = None, limit: int = SCAN_MAX
    ) -> Instances:
        """Objects of a scope; of one class; whose names start with `prefix`. Without a class all are looked at."""
        start = self._keys.instances(scope, cls, prefix if cls is not None else "")
        page = await self._page(start, token, limit)
        entries = []
        for record in page.records:
            key = self._keys.instance_of(record.key)
            if key.name.startswith(prefix):
                entries.append(Instance(key, decode(record, InstanceRow).row.created_ms))
        return Instances(tuple(entries), page.token)

    async def deletions(
        self, scope: str, cls: str | None = None, prefix: str = "", token: str | None = None, limit: int = SCAN_MAX
    ) -> Deletions:
        """Deleted objects, as `instances`."""
        start = self._keys.deletions(scope, cls, prefix if cls is not None else "")
        page = await self._page(start, token, limit)
        entries = []
        for record in page.records:
            key = self._keys.deletion_of(record.key)
            if key.name.startswith(prefix):
                row = decode(record, DeletedRow).row
                entries.append(Deletion(key, next_incarnation(row.term, row.incarnation, record.version)))
        return Deletions(tuple(entries), page.token)

    async def _page(self, prefix: str, token: str | None, limit: int) -> Page:
        try:
            return await self._store.scan(prefix, limit, token)
        except ScanExpired as error:
            raise BadRequest("the listing's token is too old: start again without one") from error
        except ValueError as error:
            raise BadRequest(f"the listing cannot be made: {error}") from error
        except StoreUnavailable as error:
            raise NotServing(f"the directory does not answer: {error}") from error
