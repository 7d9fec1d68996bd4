"""Where an object that sleeps had better wake: on a node that has its bytes, and room (PROTOCOLS section 4)."""

from __future__ import annotations

from domicile.errors import NotHome
from domicile.node.host import Host
from domicile.node.nodes import has_room
from domicile.placement.claims import SeenLease
from domicile.placement.records import Held, ObjectKey, Released


async def make_way(host: Host, key: ObjectKey) -> None:
    """At its `CAPACITY` a node asks where an object lives before it claims; a cold one goes to a node with room.

    Where none has any, it lives here after all. Raises NotHome, naming the node, and StoreUnavailable.
    """
    nodes = host.nodes
    lease = await host.leases.read(key.id)
    state = lease.row.state if lease is not None else None
    row = nodes.get(state.owner) if isinstance(state, Held) else None
    if row is None:
        row = nodes.choose_home(key.id, key.cls, {nodes.me})
        if row is None or not has_room(row):
            return
    if row.node_id != nodes.me and row.peer:
        raise NotHome(f"this node is full: {key} is for node {row.node_id}", node=row.node_id)


def prefer_member(host: Host, key: ObjectKey, lease: SeenLease | None) -> None:
    """Of an object whose bytes are not here: on a live member, if it sleeps. Raises NotHome, naming its node."""
    state = lease.row.state if lease is not None else None
    if not isinstance(state, Released):
        return
    mine = host.replicas.copy_id if host.replicas is not None else None
    if mine in state.members:
        return
    for copy in state.members:
        row = host.nodes.with_copy(copy)
        if row is not None and row.peer and host.nodes.may_home(row, key.cls) and has_room(row):
            raise NotHome(f"{key} sleeps on node {row.node_id}", node=row.node_id)
