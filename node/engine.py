"""Everything of one residency that runs the object's own code: connection, SQL, context, instance."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from blake3 import blake3

from domicile.classes import ClassSpec, HookSpec
from domicile.node.context import ObjectContext
from domicile.node.host import Host
from domicile.node.sqlite import alarm_table, meta_table
from domicile.node.sqlite.birth import IMAGE
from domicile.node.sqlite.database import Database
from domicile.node.sqlite.kv import KvApi
from domicile.node.sqlite.migrations import Migration, apply
from domicile.node.sqlite.sql import SqlApi
from domicile.node.sqlite.transaction import Limits, Transactions
from domicile.node.sqlite.wal import CHUNK_BYTES
from domicile.node.takeover.lay import Early, Laid, lay, may_reopen, reopened
from domicile.node.takeover.layer import Layer
from domicile.node.takeover.own_copy import Files
from domicile.node.takeover.paging import PagedBase
from domicile.object import bind
from domicile.placement.claims import Claimed
from domicile.placement.records import ObjectKey, Released

_INIT_DONE = "init"


@dataclass(frozen=True, slots=True)
class Laying:
    """How to lay: `early` and `may_serve` as `lay` has them. `laid` is called before anything is opened."""

    early: Early | None
    may_serve: bool
    laid: Callable[[], None]


@dataclass(slots=True)
class Engine:
    """An opened object."""

    files: Files
    spec: ClassSpec
    db: Database
    sql: SqlApi
    context: ObjectContext
    tx: Transactions
    instance: Any
    migrations: tuple[Migration, ...]
    earliest: int | None  # when the first alarm is due, as the file was opened
    paged: PagedBase | None = None

    birth_size: int = len(IMAGE)

    @property
    def whole(self) -> bool:
        """Whether all bytes are there: until then no SQL runs on the loop, which has to fetch them."""
        return self.paged is None or self.paged.whole

    def close(self) -> bool:
        """Close the connection, in a thread. False while another thread uses it. Raises nothing."""
        closed = self.db.close()
        if closed and self.paged is not None:
            self.paged.close()
        return closed

    def read_chunk(self, index: int) -> bytes:
        """One chunk of the base; the object stands still."""
        return self.db.read_base(index * CHUNK_BYTES, CHUNK_BYTES)

    @property
    def async_prologue(self) -> bool:
        """Whether a hook that runs before the first call has to be awaited."""
        return any(hook.is_async for hook in self._waking_hooks())

    def prologue(self) -> Callable[[], None] | None:
        """What runs at the head of the first transaction: migrations, `init` once an incarnation, `on_wake`."""
        if self.migrations or self._waking_hooks():
            return self._wake
        return None

    async def wake_async(self) -> bytes:
        """The same where a hook has to be awaited; in a transaction of its own."""
        self._migrate()
        for hook in self._due_hooks():
            result = hook.function(self.instance)
            if inspect.isawaitable(result):
                await result
        return b"null"

    def _wake(self) -> None:
        self._migrate()
        for hook in self._due_hooks():
            hook.function(self.instance)

    def _migrate(self) -> None:
        if self.migrations:
            apply(self.sql, self.migrations, self.context.now_ms())

    def _due_hooks(self) -> list[HookSpec]:
        hooks = self._waking_hooks()
        if hooks and hooks[0].name == "init":
            if meta_table.get(self.sql, _INIT_DONE) is None:
                meta_table.put(self.sql, _INIT_DONE, b"1")
            else:
                hooks = hooks[1:]
        return hooks

    def _waking_hooks(self) -> list[HookSpec]:
        return [self.spec.hooks[name] for name in ("init", "on_wake") if name in self.spec.hooks]


async def lay_and_open(
    host: Host, key: ObjectKey, spec: ClassSpec, claimed: Claimed, files: Files, laying: Laying
) -> tuple[Laid, Engine]:
    """The object's file as the claim wants it, opened. A copy that was released here is found and opened in one hop."""
    released = may_reopen(host, claimed)
    if released is not None:
        found = await host.workers.run(lambda: _reopened(host, key, spec, files, released))
        if found is not None:
            return found
    laid = await lay(host, key, claimed, files, laying.early, may_serve=laying.may_serve)
    laying.laid()
    try:
        return laid, await host.workers.run(lambda: open_engine(host, key, spec, files, laid))
    except BaseException:
        if laid.paged is not None:
            await laid.paged.drop()
        raise


def _reopened(
    host: Host, key: ObjectKey, spec: ClassSpec, files: Files, released: Released
) -> tuple[Laid, Engine] | None:
    laid = reopened(host, files, released)
    return (laid, open_engine(host, key, spec, files, laid)) if laid is not None else None


def open_engine(host: Host, key: ObjectKey, spec: ClassSpec, files: Files, laid: Laid) -> Engine:
    """Open the laid file, in a thread. Raises Corrupt when SQLite recovered another length than was laid, NotServing
    when what it has to read cannot be had."""
    host.failpoints.hit("activation.after-lay")
    if laid.source == "birth":
        Layer(host, files).birth(laid.manifest, laid.tag)
    config, length = host.config, laid.position.length
    vfs = host.disk.vfs if laid.paged is None else laid.paged.vfs.name
    db = Database.open(files.base, vfs=vfs, bytes_max=config.object_db_max_mb << 20, laid=length, mark=host.sql_mark)
    try:
        if laid.paged is not None:
            laid.paged.given_up = lambda: db.expired or db.doomed
            filled = Layer(host, files).filled
            laid.paged.record = partial(filled, laid.position, laid.shape, laid.manifest, laid.tag)
        sql = SqlApi(db)
        log = host.log.bind(project=key.scope, cls=key.cls, object=key.name)
        tx = Transactions(
            db,
            sql,
            host.clock,
            Limits(int(config.object_idempotency_secs)),
            before_commit=lambda: host.failpoints.hit("call.before-commit"),
            after_commit=lambda: host.failpoints.hit("call.after-commit"),
        )
        context = ObjectContext(host, key, db, sql, KvApi(sql), tx, log)
        migrations = tuple(Migration(m.name, m.sql, blake3(m.sql.encode()).digest()) for m in spec.migrations)
        instance = bind(spec.type, context)
        earliest = None if laid.source == "birth" else alarm_table.earliest_due(db)
    except BaseException:
        db.close()
        raise
    return Engine(files, spec, db, sql, context, tx, instance, migrations, earliest, laid.paged)
