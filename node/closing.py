"""Closing an object's connection, at the good end of a residency and at any other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from domicile.node.errors import NodeError
from domicile.node.takeover.layer import Layer
from domicile.placement.records import Released

if TYPE_CHECKING:
    from domicile.node.host import Host
    from domicile.node.residency import Residency

CLOSE_SECS_MAX = 10.0


class NodeFailure(NodeError):
    """This node cannot go on with the object; another residency may."""


async def close_clean(host: Host, residency: Residency) -> Released:
    """Everything landed: close, and give what to write into the lease row. Raises NodeFailure, OSError."""
    if residency.engine.paged is not None:
        await residency.engine.paged.stop()
    return await host.workers.run(lambda: _close_clean(host, residency))


def _close_clean(host: Host, residency: Residency) -> Released:
    manifest, tag, log = residency.leg.manifest, residency.leg.tag, residency.log
    engine = residency.engine
    if not engine.close():
        raise NodeFailure(f"{residency.key}: its connection is still in use")
    if not isinstance(tag, str) or manifest.seq == 0:
        host.disk.remove_dir(engine.files.directory)
        return Released(log.position, manifest.checksum, None)
    if engine.paged is not None and not engine.paged.settled:  # no copy of anything, and the manifest covers it
        host.disk.remove_dir(engine.files.directory)
        return Released(log.position, manifest.checksum, tag, manifest.members, manifest.quorum)
    host.failpoints.hit("release.before-sidecar")
    if manifest.epoch == residency.epoch:  # else nothing was committed: the sidecar of the last release still holds
        Layer(host, engine.files).released(log.position, log.start, manifest, tag)
    return Released(log.position, manifest.checksum, tag, manifest.members, manifest.quorum)


async def run_sleep_hook(host: Host, residency: Residency) -> None:
    """`on_sleep`, before the last flush; its failure holds up nothing."""
    hook = None if residency.landing else residency.spec.hooks.get("on_sleep")
    if hook is not None and (error := (await residency.run_hook(hook, ())).error) is not None:
        host.log.warning("on_sleep.failed", object=str(residency.key), error=str(error))


async def close_out(host: Host, residency: Residency) -> None:
    """Close the connection whoever still uses it; nothing may touch the files before that."""
    engine = residency.engine
    engine.db.doom()
    if engine.paged is not None:
        await engine.paged.stop()
    began, pause = residency.now(), 0.005
    while not await host.workers.run(engine.close):
        await host.clock.sleep(pause)
        pause = min(pause * 2, 0.5)
        if residency.now() - began > CLOSE_SECS_MAX:
            host.replace_process(f"{residency.key}: a method holds its database and does not return")
            return


async def remove_files(host: Host, residency: Residency) -> None:
    """Of a deleted object; its connection is closed."""
    try:
        await host.workers.run(lambda: host.disk.remove_dir(residency.engine.files.directory))
    except OSError as error:  # what stays there is void by its incarnation
        host.log.warning("delete.files", object=str(residency.key), error=str(error))
