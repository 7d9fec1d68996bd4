"""A call and its answer, as they travel from `app.py` through `call.py` and back. No behaviour beyond checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from domicile.placement.records import ClassRow, Epoch, Incarnation, ObjectKey, ProjectRow

ServedBy = Literal["owner", "replica", "store"]


@dataclass(slots=True)
class Call:
    """One request to one object.

    `body` is the JSON text of the arguments: an array (positional), an object (keywords) or empty. `deadline` is on
    `Clock.monotonic`. `chain` holds the objects upstream that wait for this call, outermost first.
    """

    key: ObjectKey
    method: str
    body: bytes
    deadline: float
    idempotency_key: str | None = None
    if_match: Incarnation | None = None
    chain: tuple[ObjectKey, ...] = ()
    trace: str | None = None


@dataclass(slots=True)
class Answer:
    """A result: `body` is JSON text. `node` served it; empty: the node that was asked."""

    body: bytes
    epoch: Epoch
    served_by: ServedBy = "owner"
    node: str = ""


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One line of a batch."""

    cls: str
    name: str
    method: str
    body: bytes
    idempotency_key: str | None = None


class Front(Protocol):
    """What the HTTP surface needs of a node. Every method raises errors of `domicile.errors` only."""

    node_id: str

    async def call(self, call: Call) -> Answer: ...

    async def delete(self, key: ObjectKey, if_match: Incarnation | None, idempotency_key: str | None) -> Epoch:
        """Gives the tombstone's epoch. Raises NoSuchObject, StaleIncarnation."""
        ...

    async def batch(self, project: str, items: Sequence[BatchItem], deadline: float) -> list[Answer | Exception]: ...

    async def list_objects(self, project: str, cls: str | None, prefix: str, token: str | None) -> dict[str, Any]:
        """{"objects": [{class, name, id, created_ms}], "token": next or None}; up to 1,000 a page."""
        ...

    async def describe(self, key: ObjectKey) -> dict[str, Any]:
        """Where the object is and how safe (API, HTTP); wakes nothing. Raises NoSuchObject."""
        ...

    async def project(self, project: str) -> ProjectRow:
        """Raises NoSuchProject."""
        ...

    async def list_projects(self) -> dict[str, ProjectRow]:
        """All projects, by id."""
        ...

    async def put_project(self, project: str, region: str | None, on_incident: str | None) -> ProjectRow: ...

    async def repin(self, project: str, cls: str, pin: str | None) -> ClassRow:
        """Pins a class to another region, or to none. Raises BadRequest while objects of it live elsewhere."""
        ...

    async def is_region(self, name: str) -> bool:
        """Whether a region of this name has registered. Raises BadName, and NotServing where nobody knows now."""
        ...

    async def cluster(self) -> dict[str, Any]: ...

    async def incidents(self) -> list[dict[str, Any]]: ...

    async def incident_database(self, object_id: str, epoch: str) -> bytes: ...

    def now(self) -> float:
        """`Clock.monotonic`, for deadlines."""
        ...

    def ready(self) -> bool:
        """Admitted, and not leaving."""
        ...
