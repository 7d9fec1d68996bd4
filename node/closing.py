"""Closing an object's connection, at the good end of a residency and at any other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from domicile.node.errors import NodeError
from domicile.node.laying import Layer
from domicile.placement.records import Released

if TYPE_CHECKING:
    from domicile.node.host import Host
    from domicile.node.residency import Residency

CLOSE_SECS_MAX = 10.0


class NodeFailure(NodeError):
    """This node cannot go on with the object; another residency may."""


def close_clean(host: Host, residency: Residency) -> Released | None:
    """In a thread, everything landed: close, and give what to write into the lease row. Raises NodeFailure, OSError."""
    manifest, tag, log = residency.leg.manifest, residency.leg.tag, residency.log
    if not residency.engine.db.close():
        raise NodeFailure(f"{residency.key}: its connection is still in use")
    if not isinstance(tag, str) or manifest.seq == 0:
        host.disk.remove_dir(residency.engine.files.directory)
        return Released(log.position, manifest.checksum, None)
    host.failpoints.hit("release.before-sidecar")
    if manifest.epoch == residency.epoch:  # else nothing was committed: the sidecar of the last release still holds
        Layer(host, residency.engine.files).released(log.position, log.start, manifest, tag)
    return Released(log.position, manifest.checksum, tag, manifest.members, manifest.quorum)


async def close_out(host: Host, residency: Residency) -> None:
    """Close the connection whoever still uses it; nothing may touch the files before that."""
    residency.engine.db.doom()
    began, pause = residency.now(), 0.005
    while not await host.workers.run(residency.engine.db.close):
        await host.clock.sleep(pause)
        pause = min(pause * 2, 0.5)
        if residency.now() - began > CLOSE_SECS_MAX:
            host.replace_process(f"{residency.key}: a method holds its database and does not return")
            return
