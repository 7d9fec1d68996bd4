"""The nodes of the region, as their watched rows say (PROTOCOLS sections 2 and 3).

While the placement store does not answer, the last whole list stays: known peers are kept, nobody new is dialled,
nobody dropped. What is read here is for routing and for choosing; the authority is the write that goes by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from domicile.placement.followed import Followed, Seen, Sleep
from domicile.placement.keys import Keys
from domicile.placement.records import NodeRow
from domicile.placement.rendezvous import Candidate, rank, spread
from domicile.placement.store import Store

SERVING = "serving"


class Nodes:
    """Rows of this region's nodes by node id; run `followed.run()` beside. `me` is this node's id, kept up to date.

    `departed` and `seen` are told of every row that goes, and of every version.
    """

    def __init__(self, store: Store, keys: Keys, sleep: Sleep) -> None:
        self._keys = keys
        self._by_copy: dict[str, NodeRow] = {}
        self._by_id: dict[str, Seen[NodeRow]] = {}
        self.followed = Followed(store, keys.nodes, NodeRow, sleep)
        self.followed.changed = self._changed
        self.departed: Callable[[NodeRow], None] = lambda row: None
        self.seen: Callable[[str, int | None], None] = lambda node_id, version: None
        self.me = ""

    def get(self, node_id: str) -> NodeRow | None:
        """A node's row, if it has one."""
        seen = self._by_id.get(node_id)
        return seen.row if seen else None

    def others(self) -> list[NodeRow]:
        """All but this one, by node id."""
        return [seen.row for node_id, seen in sorted(self._by_id.items()) if node_id != self.me]

    def all(self) -> list[NodeRow]:
        """Every node with a row, this one too, by node id."""
        return [seen.row for _, seen in sorted(self._by_id.items())]

    def with_copy(self, copy_id: str) -> NodeRow | None:
        """The node that keeps this copy id now."""
        return self._by_copy.get(copy_id)

    def address_of(self, copy_id: str) -> str | None:
        """Where the keeper of a copy id listens for peers; None when no other node has it."""
        row = self._by_copy.get(copy_id)
        return row.peer if row is not None and row.node_id != self.me and row.peer else None

    def choose_members(self, object_id: str, count: int, keep: Iterable[str] = ()) -> tuple[str, ...]:
        """Copy ids for an object's members: those of `keep` that live, then by rendezvous, distinct zones first."""
        kept = [copy for copy in keep if self._may_keep(copy)][:count]
        if len(kept) == count:  # as asked every second for every object awake
            return tuple(kept)
        live = {row.copy_id: row for row in self.others() if row.copy_id and row.state == SERVING}
        rest = [Candidate(copy, row.weight, row.zone) for copy, row in live.items() if copy not in kept]
        chosen = spread(object_id, rest, count - len(kept))
        return (*kept, *(candidate.id for candidate in chosen))

    def _may_keep(self, copy_id: str) -> bool:
        row = self._by_copy.get(copy_id)
        return row is not None and row.node_id != self.me and row.state == SERVING

    def choose_home(self, object_id: str, cls: str, leave_out: Iterable[str]) -> NodeRow | None:
        """A node that serves the class, by rendezvous over weights; a full one only where all are."""
        out = set(leave_out)
        rows = {row.node_id: row for row in self.all() if self.may_home(row, cls) and row.node_id not in out}
        rows = {node_id: row for node_id, row in rows.items() if has_room(row)} or rows
        first = next(iter(rank(object_id, [Candidate(row.node_id, row.weight) for row in rows.values()])), None)
        return rows[first.id] if first else None

    def may_home(self, row: NodeRow, cls: str) -> bool:
        """Whether the node takes objects of this class now."""
        return row.state == SERVING and cls in row.classes

    def rows(self) -> Mapping[str, Seen[NodeRow]]:
        return self._by_id

    def _changed(self, key: str, before: Seen[NodeRow] | None, after: Seen[NodeRow] | None) -> None:
        node_id = self._keys.node_of(key)
        if before is not None and self._by_copy.get(before.row.copy_id) == before.row:
            del self._by_copy[before.row.copy_id]
        self.seen(node_id, after.version if after is not None else None)
        if after is None:
            self._by_id.pop(node_id, None)
            if before is not None:
                self.departed(before.row)
            return
        self._by_id[node_id] = after
        if after.row.copy_id:
            self._by_copy[after.row.copy_id] = after.row


def has_room(row: NodeRow) -> bool:
    """Whether the node is below its `CAPACITY`, by its last renewal."""
    return not row.capacity or row.load < row.capacity
