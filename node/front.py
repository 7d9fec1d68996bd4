"""What a node's HTTP surface, and another node's forwarding, may ask of it (`values.Front`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from domicile.errors import DomicileError, NotHome, NotServing, OutcomeUnknown
from domicile.node.chunks import LOST, lost_key
from domicile.node.deletion import Deletion
from domicile.node.describe import describe
from domicile.node.errors import BlobError, BlobMissing, PeerBusy, PeerGone
from domicile.node.host import Host
from domicile.node.operations import NoSuchOperation
from domicile.node.peering import Request, ask_region
from domicile.node.residents import Residents
from domicile.node.routing.control_view import ControlView
from domicile.node.routing.crossing import Crossing, Twice
from domicile.node.routing.home_region import HomeRegion
from domicile.node.routing.listings import Listings
from domicile.node.routing.repin import Repin
from domicile.node.routing.router import Router
from domicile.node.values import Answer, BatchItem, Call
from domicile.node.wire.messages import Hops
from domicile.placement.admission import Admission
from domicile.placement.incidents import Incidents
from domicile.placement.projects import Projects
from domicile.placement.records import ClassRow, Epoch, Forwarded, Held, Incarnation, NodeRow, ObjectKey, ProjectRow
from domicile.placement.store import StoreUnavailable
from domicile.registry import Registry

ASK_SECS = 10.0


class DeleteRequest(msgspec.Struct, array_like=True):
    """A deletion on its way to the object's home."""

    key: tuple[str, str, str]
    if_match: Incarnation | None
    idempotency_key: str | None


class NodeFront:
    """The surface of a node; `Node` builds the parts it stands on."""

    node_id: str
    admission: Admission
    _state: str
    _http: str
    _host: Host
    _registry: Registry
    _residents: Residents
    _router: Router
    _crossing: Crossing
    _homes: HomeRegion
    _control: ControlView
    _deletion: Deletion
    _listings: Listings
    _repin: Repin
    _projects: Projects
    _incidents: Incidents

    def requests(self) -> dict[str, Request]:
        """What is asked by name: by nodes of this region, and of others."""
        return {
            "delete": self.delete_here,
            "describe": self.describe_here,
            "region-delete": self.delete_in_region,
            "region-describe": self.describe_in_region,
            "region-list": self._listings.in_region,
            "region-project": self.project_in_region,
        } | self._repin.requests()

    def now(self) -> float:
        return self._host.clock.monotonic()

    def ready(self) -> bool:
        return self._state == "serving" and self.admission.remaining() > 0

    async def call(self, call: Call) -> Answer:
        began = self._host.clock.monotonic()
        outcome = "ok"
        try:
            return await self._router.call(call, Hops())
        except DomicileError as error:
            outcome = error.code
            raise
        finally:
            known = call.key.cls if call.key.cls in self._registry.classes else "unknown"
            self._host.telemetry.of_class(known).done(outcome, self._host.clock.monotonic() - began)

    async def delete(self, key: ObjectKey, if_match: Incarnation | None, idempotency_key: str | None) -> Epoch:
        body = msgspec.msgpack.encode(DeleteRequest((key.scope, key.cls, key.name), if_match, idempotency_key))
        twice: Twice = "harmful" if idempotency_key is None else "keyed"
        answer = await self._crossing.ask(
            key,
            await self._homes.of(key, create=False),
            lambda: self.delete_in_region(body),
            ask_region(self._host.peers, "region-delete", body),
            twice,
        )
        return msgspec.msgpack.decode(answer, type=Epoch)

    async def delete_in_region(self, body: bytes) -> bytes:
        """A deletion that a client, or another region, asks of this one; at most one hop further."""
        try:
            return await self.delete_here(body)
        except NotHome as error:
            home = self._host.nodes.get(str(error.extra.get("node")))
            if home is None:
                raise
            return await self._ask(home, "delete", body, changes=True)

    async def delete_here(self, body: bytes) -> bytes:
        """A deletion that another node forwards."""
        request = msgspec.msgpack.decode(body, type=DeleteRequest)
        self.admission.check()
        epoch = await self._deletion.delete(ObjectKey(*request.key), request.if_match, request.idempotency_key)
        return msgspec.msgpack.encode(epoch)

    async def batch(self, project: str, items: Sequence[BatchItem], deadline: float) -> list[Answer | Exception]:
        """In order within an object, side by side between objects."""
        by_object: dict[ObjectKey, list[int]] = {}
        answers: list[Answer | Exception] = [NotServing("not run")] * len(items)
        for at, item in enumerate(items):
            try:
                by_object.setdefault(ObjectKey.checked(project, item.cls, item.name), []).append(at)
            except DomicileError as error:
                answers[at] = error

        async def run(key: ObjectKey, lines: list[int]) -> None:
            for at in lines:
                item = items[at]
                call = Call(key, item.method, item.body, deadline, item.idempotency_key)
                try:
                    answers[at] = await self.call(call)
                except DomicileError as error:
                    answers[at] = error

        await asyncio.gather(*(run(key, lines) for key, lines in by_object.items()))
        return answers

    async def list_objects(self, project: str, cls: str | None, prefix: str, token: str | None) -> dict[str, Any]:
        return await self._listings.page(project, cls, prefix, token)

    async def describe(self, key: ObjectKey) -> dict[str, Any]:
        body = msgspec.msgpack.encode((key.scope, key.cls, key.name))
        answer = await self._crossing.ask(
            key,
            await self._homes.of(key, create=False),
            lambda: self.describe_in_region(body),
            ask_region(self._host.peers, "region-describe", body),
            "reads",
        )
        about: dict[str, Any] = msgspec.json.decode(answer)
        return about

    async def describe_in_region(self, body: bytes) -> bytes:
        """What a client, or another region, asks of this one; at most one hop further."""
        key = ObjectKey(*msgspec.msgpack.decode(body, type=tuple[str, str, str]))
        residency = self._residents.find(key.id)
        awake = residency if residency is not None and residency.serving else None
        home = None if awake is not None else await self._home_of(key)
        if home is not None:
            return await self._ask(home, "describe", body)
        return msgspec.json.encode(await describe(self._host, self.node_id, key, awake))

    async def describe_here(self, body: bytes) -> bytes:
        """What another node asks of an object that is awake here, or was a moment ago."""
        key = ObjectKey(*msgspec.msgpack.decode(body, type=tuple[str, str, str]))
        residency = self._residents.find(key.id)
        awake = residency if residency is not None and residency.serving else None
        return msgspec.json.encode(await describe(self._host, self.node_id, key, awake))

    async def _home_of(self, key: ObjectKey) -> NodeRow | None:
        """Another live node that holds the object's lease. Raises NotHome for an object of another region."""
        try:
            row = await self._host.leases.read(key.id)
        except StoreUnavailable as error:
            raise NotServing(f"the placement store does not answer: {error}") from error
        state = row.row.state if row is not None else None
        if isinstance(state, Forwarded):
            raise NotHome(f"{key} lives in region {state.region}", region=state.region)
        if self._host.peers is None:
            return None
        return self._host.nodes.get(state.owner) if isinstance(state, Held) and state.owner != self.node_id else None

    async def _ask(self, node: NodeRow, method: str, body: bytes, *, changes: bool = False) -> bytes:
        """Raises what the node raises; NotServing, or OutcomeUnknown where it `changes` something and may have."""
        assert self._host.peers is not None
        try:
            return await self._host.peers.ask(node.peer, method, body, ASK_SECS)
        except PeerBusy as error:
            raise NotServing(str(error)) from error
        except PeerGone as error:
            if changes and error.sent:
                raise OutcomeUnknown(f"node {node.node_id} gave no answer") from error
            raise NotServing(f"node {node.node_id} does not answer") from error

    async def project(self, project: str) -> ProjectRow:
        return await self._projects.get(project)

    async def list_projects(self) -> dict[str, ProjectRow]:
        return await self._projects.list()

    async def put_project(self, project: str, region: str | None, on_incident: str | None) -> ProjectRow:
        """The home's own region opens the gate."""
        row = await self._projects.create(project, region, on_incident)
        home = await self._homes.of_project(project)
        if home != self._homes.mine:
            ask = ask_region(self._host.peers, "region-project", msgspec.msgpack.encode(project))
            await self._crossing.into(home, ask, "keyed")
        return row

    async def repin(self, project: str, cls: str, pin: str | None) -> ClassRow:
        """The class's row with its new pin."""
        return await self._repin.run(project, cls, pin)

    async def project_in_region(self, body: bytes) -> bytes:
        """A project that another region has created, with its home here."""
        await self._projects.create(msgspec.msgpack.decode(body, type=str))
        return b""

    async def is_region(self, name: str) -> bool:
        """Whether it has registered. Raises BadName, and NotServing where nobody knows now."""
        try:
            return await self._control.regions.registered(name)
        except StoreUnavailable as error:
            raise NotServing(f"region {name} is not known here, and control does not answer: {error}") from error

    async def cluster(self) -> dict[str, Any]:
        config = self._host.config
        return {
            "cluster": config.cluster,
            "region": config.region,
            "replica_sync": config.object_replica_sync,
            "nodes": [self._shown(row) for row in self._host.nodes.all()],
            "regions": [
                {"name": row.name, "ingress": row.ingress, "http": row.http, "since_ms": row.since_ms}
                for _, row in sorted(self._control.regions.all_known().items())
            ],
            "standins": {name: by for name, by in self._control.regions.standins_known().items() if by != name},
        }

    def _shown(self, row: NodeRow) -> dict[str, Any]:
        about = {
            "node_id": row.node_id,
            "http": row.http,
            "peer": row.peer,
            "copy_id": row.copy_id,
            "zone": row.zone,
            "state": row.state,
            "residents": row.load,
        }
        if row.node_id == self.node_id:
            about |= {
                "state": self._state,
                "residents": len(self._residents),
                "admission_remaining_secs": round(max(0.0, self.admission.remaining()), 3),
            }
        return about

    async def incidents(self) -> list[dict[str, Any]]:
        """Those that are open."""
        try:
            found = await self._incidents.open()
        except StoreUnavailable as error:
            raise NotServing(f"the placement store does not answer: {error}") from error
        region = self._host.config.region
        return [{"region": region, **incident.shown()} for incident in found]

    async def incident_database(self, object_id: str, epoch: str) -> bytes:
        """The lost branch of one, as a SQLite file. Raises NoSuchOperation while it has not been found and stored."""
        key = lost_key(object_id, Epoch.parse(epoch), LOST)
        try:
            return (await self._host.blobs.get(key)).data
        except BlobMissing:
            raise NoSuchOperation(f"no branch of object {object_id}, epoch {epoch}, has been stored") from None
        except BlobError as error:
            raise NotServing("the blob store does not answer") from error
