"""Putting the manifest: one compare-and-swap whose answer may be lost (PROTOCOLS section 7, "Manifest puts")."""

from __future__ import annotations

from enum import Enum

from domicile.node import manifest as manifests
from domicile.node.blobs.base import ABSENT, Absent
from domicile.node.chunks import manifest_key
from domicile.node.errors import BlobMissing, BlobUnavailable, Fenced, PreconditionFailed
from domicile.node.host import Host
from domicile.node.manifest import Manifest

Tag = str | Absent
ATTEMPTS_MAX = 8


class Conflict(Exception):
    """Another manifest of a lower epoch is there: only a takeover may adopt it (step 4)."""


class Found(Enum):
    """What a re-read says of a put whose answer was lost or that was refused."""

    LANDED = 1
    NOT_YET = 2
    OLDER = 3


async def read(host: Host, object_id: str) -> tuple[Manifest | None, Tag]:
    """The manifest and its tag; (None, ABSENT) when there is none. Raises Corrupt, BlobUnavailable."""
    key = manifest_key(object_id)
    try:
        blob = await host.blobs.get(key)
    except BlobMissing:
        return None, ABSENT
    return manifests.decode(blob.data, key), blob.tag


async def put(host: Host, manifest: Manifest, tag: Tag) -> str:
    """Land `manifest` over the value tagged `tag`; gives the new tag.

    The same bytes are retried as long as the value they were conditioned on is still there. Raises Fenced, Conflict,
    BlobUnavailable (it may still land: whoever goes on keeps conditioning on what the bucket has).
    """
    key, data = manifest_key(manifest.object_id), manifests.encode(manifest)
    for attempt in range(ATTEMPTS_MAX):
        try:
            return await host.blobs.put(key, data, tag)
        except PreconditionFailed:
            pass
        except BlobUnavailable as error:
            if not error.maybe:
                raise
        current, current_tag = await read(host, manifest.object_id)
        found = judge(current, current_tag, manifest, tag)
        if found is Found.LANDED:
            assert isinstance(current_tag, str)
            return current_tag
        if found is Found.OLDER:
            raise Conflict(f"object {manifest.object_id}: another manifest of an older epoch landed")
        await host.clock.sleep(host.jitter(0.01 * 2**attempt))
    raise BlobUnavailable(f"{key}: {ATTEMPTS_MAX} puts without an answer", maybe=True)


def judge(current: Manifest | None, current_tag: Tag, mine: Manifest, tag: Tag) -> Found:
    """What the register's present value says of my put. Raises Fenced when a newer owner wrote it."""
    if current is not None and current.put_id == mine.put_id:
        return Found.LANDED
    if current_tag == tag:
        return Found.NOT_YET
    if current is not None and (current.incarnation, current.epoch) > (mine.incarnation, mine.epoch):
        raise Fenced(f"object {mine.object_id}: the manifest is of epoch {current.epoch}, this owner's is {mine.epoch}")
    return Found.OLDER
