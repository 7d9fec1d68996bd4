"""The file work of a lay: birth image, restore from chunks and segments, the exact cut, the sidecar (section 5).

The sidecar is removed first and written last: a crash in between leaves no candidate, and the store still has it all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from blake3 import blake3

from domicile.node import manifest as manifests
from domicile.node import sidecar as sidecars
from domicile.node.blobs.base import ABSENT
from domicile.node.chunks import (
    FETCHES_PARALLEL,
    ChunkRef,
    Segment,
    chunk_key,
    fetch_base,
    fetch_chunk,
    segment_key,
)
from domicile.node.errors import BlobMissing, Corrupt, NodeError, PeerBusy, PeerGone
from domicile.node.host import Host
from domicile.node.log import BaseShape
from domicile.node.manifest import Manifest
from domicile.node.register import Tag
from domicile.node.sidecar import Clean, Laid, Landed, Paging, Rotating, Sidecar, State, Taken
from domicile.node.sqlite.birth import IMAGE
from domicile.node.sqlite.checksum import checksum
from domicile.node.sqlite.wal import CHUNK_BYTES
from domicile.node.takeover.asking import MemberCopy
from domicile.node.takeover.member_source import MemberSource
from domicile.node.takeover.own_copy import Files
from domicile.node.takeover.paging import PagedBase
from domicile.placement.records import Generation, Position


class Layer:
    """Writes one object's files."""

    def __init__(self, host: Host, files: Files) -> None:
        self._host = host
        self._disk = host.disk
        self._files = files

    def birth(self, manifest: Manifest, tag: Tag) -> None:
        """A new object: the birth image, no log. Nothing is synced: there is nothing yet that could be lost."""
        self._clear()
        self._disk.write(self._files.base, IMAGE, sync=False)
        self._host.failpoints.hit("lay.after-birth")
        self._write(manifest.position, 0, BaseShape(), manifest, tag, Laid(), sync=False)

    async def restore(self, manifest: Manifest, spare: MemberCopy | None = None) -> PagedBase | None:
        """Base and log as the manifest has them, verified; a large base in pages, which it gives then.

        What the store has lost of those is taken from `spare`, a member that has the same base.

        Raises BlobMissing, Corrupt, BlobUnavailable.
        """
        log, run = await self._log(manifest), self._host.workers.run
        if not manifest.base:
            await run(lambda: self._place_small(log))
            return None
        await run(self._clear)
        if self._large(manifest):
            source = MemberSource(self._host, manifest.object_id, spare) if spare is not None else None
            return await self._in_pages(manifest, log, partial(self._stored_chunk, manifest, source))
        await fetch_base(self._host.blobs, self._host.cache, manifest.image, self._place)
        await run(lambda: self._place_log(log))
        return None

    def _large(self, manifest: Manifest) -> bool:
        return manifest.base_size > self._host.config.object_paged_mb << 20

    async def _in_pages(self, manifest: Manifest, log: bytes, fetch: Callable[[int], Awaitable[bytes]]) -> PagedBase:
        """Of a base that the manifest names; the log may be longer than the manifest's."""
        await self._host.workers.run(lambda: self._size(manifest))
        await self._host.workers.run(lambda: self._place_log(log))
        paged = PagedBase(self._host, manifest.image, self._files.base, fetch)
        try:
            await paged.want(0)  # whatever opens the base reads that
        except BaseException:
            await paged.drop()
            raise
        return paged

    async def _stored_chunk(self, manifest: Manifest, member: MemberSource | None, index: int) -> bytes:
        """From the store; what it has lost, or has rotten, from a member, and back into the store."""
        host, image = self._host, manifest.image
        try:
            return await fetch_chunk(host.blobs, host.cache, image, index)
        except (BlobMissing, Corrupt) as lost:
            if member is None:
                raise
            try:
                data = await member.chunk(index)
            except NodeError:
                raise lost from None
            host.log.warning("base.mended", object=image.object_id, error=str(lost))
            await host.blobs.put(chunk_key(image.object_id, image.incarnation, image.refs[index]), data)
            return data

    async def _member_chunk(self, manifest: Manifest, member: MemberSource, index: int) -> bytes:
        """From a member as long as it has the base; then from the store."""
        try:
            return await member.chunk(index)
        except (PeerGone, PeerBusy, BlobMissing, Corrupt):
            return await fetch_chunk(self._host.blobs, self._host.cache, manifest.image, index)

    def _place_small(self, log: bytes) -> None:
        """All there is of an object that was never rotated: the birth image and the log."""
        self._clear()
        self._disk.write(self._files.base, IMAGE, sync=False)
        self._place_log(log)

    def _place_log(self, log: bytes) -> None:
        self._host.failpoints.hit("lay.after-base")
        self._disk.write(self._files.log, log, sync=False)
        self._host.failpoints.hit("lay.after-log")

    def _size(self, manifest: Manifest) -> None:
        """A base without content, marked as no copy of anything before it looks like one."""
        shape = BaseShape.of(manifest)
        missing = ((1 << len(shape.hashes)) - 1).to_bytes(-(-len(shape.hashes) // 8), "little")
        self._write(manifest.position, manifest.start, shape, manifest, ABSENT, Paging(missing), sync=True)
        self._disk.write(self._files.base, b"", sync=False)
        self._disk.truncate(self._files.base, shape.size, sync=False)

    async def copy_from(self, member: MemberCopy, manifest: Manifest) -> PagedBase | None:
        """Base and log as a member has them, verified; a large base that the manifest has too in pages.

        Raises PeerGone, BlobMissing, Corrupt.
        """
        source = MemberSource(self._host, manifest.object_id, member)
        log = await source.log()
        if checksum(member.shape.seed(manifest.object_id, member.position.incarnation), log) != member.checksum:
            raise Corrupt(f"object {manifest.object_id}: member {member.copy_id} sent a log without its checksum")
        run = self._host.workers.run
        if not member.shape.hashes:
            await run(lambda: self._place_small(log))
            return None
        await run(self._clear)
        if self._large(manifest) and member.shape == BaseShape.of(manifest):
            return await self._in_pages(manifest, log, partial(self._member_chunk, manifest, source))
        await source.base(self._place)
        await run(lambda: self._place_log(log))
        return None

    async def _log(self, manifest: Manifest) -> bytes:
        pieces: dict[Segment, bytes] = {}
        lacking = iter(manifest.segments)

        async def some() -> None:
            for segment in lacking:
                pieces[segment] = await self._segment(manifest, segment)

        tasks = [self._host.loop.create_task(some()) for _ in range(min(FETCHES_PARALLEL, len(manifest.segments)))]
        try:
            for task in tasks:
                await task
        finally:
            for task in tasks:
                task.cancel()
        log = b"".join(pieces[segment] for segment in manifest.segments) + manifest.tail_log
        if checksum(manifest.seed, log) != manifest.checksum:
            raise Corrupt(f"object {manifest.object_id}: its log does not have the manifest's checksum")
        return log

    async def _segment(self, manifest: Manifest, segment: Segment) -> bytes:
        key = segment_key(manifest.object_id, manifest.incarnation, segment)
        try:
            data = (await self._host.blobs.get(key)).data
        except BlobMissing:
            raise BlobMissing(f"object {manifest.object_id}: a segment of its log is missing: {key}") from None
        if len(data) != segment.end - segment.start or blake3(data).digest() != segment.hash:
            raise Corrupt(f"object {manifest.object_id}: a segment of its log has the wrong content: {key}")
        return data

    def cut(self, position: Position, shape: BaseShape, manifest: Manifest, tag: str) -> None:
        """Step 5: the log to exactly the laid length, then the sidecar.

        Only a cut is synced, for the sidecar of a release to come; the files' own sidecar says that they are not.
        """
        self.cut_log(position.length)
        self._host.failpoints.hit("lay.before-sidecar")
        self._write(position, position.length, shape, manifest, tag, Taken(), sync=False)

    def cut_log(self, length: int) -> None:
        """The log alone. Enough for a base in pages: `filled` syncs, and until then a crash voids the file."""
        size = self._disk.size(self._files.log)
        if size is None:
            self._disk.write(self._files.log, b"", sync=False)
        elif size != length:
            self._disk.truncate(self._files.log, length, sync=True)
        self._host.failpoints.hit("lay.after-cut")

    def filled(self, position: Position, shape: BaseShape, manifest: Manifest, tag: Tag) -> None:
        """The last page is there, the base synced: from here on the file is a copy."""
        self._disk.sync_many([self._files.log, self._files.directory])
        self._write(position, position.length, shape, manifest, tag, Laid(), sync=True)

    def rotated(self, position: Position, shape: BaseShape, manifest: Manifest, tag: Tag) -> None:
        """After the checkpoint: the next generation, empty, on the folded base. `manifest` does not name it yet."""
        self._write(position, 0, shape, manifest, tag, Laid(), sync=False)

    def released(self, position: Position, start: int, manifest: Manifest, tag: Tag) -> None:
        """A clean release: length and checksum are exact from here on."""
        self._write(position, start, BaseShape.of(manifest), manifest, tag, Clean(), sync=True)

    def rotating(self, position: Position, start: int, manifest: Manifest, tag: Tag, to: Generation) -> None:
        """Before the checkpoint: the file is one generation or the next, and can be told which."""
        state = Rotating(position.length, to)
        self._write(position, start, BaseShape.of(manifest), manifest, tag, state, sync=True)

    def _place(self, index: int, data: bytes) -> None:
        self._disk.write_at(self._files.base, index * CHUNK_BYTES, data)

    def _write(
        self, at: Position, start: int, shape: BaseShape, manifest: Manifest, tag: Tag, state: State, *, sync: bool
    ) -> None:
        landed = Landed(manifests.encode(manifest), tag) if isinstance(tag, str) and manifest.seq else None
        sidecar = Sidecar(
            object_id=manifest.object_id,
            scope=manifest.scope,
            cls=manifest.cls,
            name=manifest.name,
            incarnation=at.incarnation,
            generation=at.generation,
            start=start,
            length=at.length,
            checksum=manifest.checksum,
            epoch=manifest.epoch,
            boot_id=self._disk.boot_id(),
            state=state,
            base=tuple(ChunkRef(digest, at.generation) for digest in shape.hashes),
            base_size=shape.size,
            landed=landed,
        )
        self._disk.replace(self._files.sidecar, sidecars.encode(sidecar), sync=sync)

    def _clear(self) -> None:
        if not self._disk.make_dir(self._files.directory):
            self._disk.remove(self._files.sidecar)
            self._disk.remove(self._files.log)
            self._disk.remove(self._files.base)
        self._host.failpoints.hit("lay.after-clear")
