"""Routes of what takes longer than a request: start it, follow it, cancel it (API, "HTTP"; PROTOCOLS section 10).

Nodes and the control process serve the same ones. A start answers as soon as the workflow runs, and a second one joins
it: follow with GET.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from domicile.errors import BadRequest
from domicile.node.http import path
from domicile.node.http.bodies import decode_json
from domicile.node.http.starlette_app import Resources, raw
from domicile.node.operations import Operation, Operations, operation
from domicile.node.problems import Problems

NODE_RE = re.compile(r"n-[0-9a-f]{16}")
INCIDENT_RE = re.compile(r"[0-9a-f]{64}")
EPOCH_RE = re.compile(r"\d{1,19}\.\d{1,19}")
ID_RE = re.compile(r"[A-Za-z0-9_.:-]{1,400}")
DECISIONS = ("apply", "keep", "export")
SIGNALS = ("go_on", "stop")


class OperationSurface(Protocol):
    """What the handlers need; a node's surface has it, and the control process's."""

    operations: Operations
    problems: Problems

    async def body(self, request: Request) -> bytes: ...

    async def regions(self) -> Collection[str]:
        """Those that have registered."""
        ...

    async def is_region(self, name: str) -> bool:
        """Whether this one has. Raises BadName, and NotServing where nobody knows now."""
        ...

    def json(self, value: Any) -> Response: ...


class MoveTo(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a move. `mb_per_sec`: 0 is no limit. `keep_hours`: None is `MOVE_KEEP_HOURS` of whoever is asked."""

    to: str
    mb_per_sec: float = 0.0
    keep_hours: float | None = None


class NoSuchRegion(BadRequest):
    """No region of this name has registered: nothing would ever take up the work."""

    status, title = 404, "There is no such region"


class OnItsWay(BadRequest):
    """The project is moving to another region than was asked."""

    status, title = 409, "Another move of the project is under way"


class StartBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a start by the workflow's name."""

    workflow: str
    input: dict[str, Any]


class RegionBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a drain; None: the region of whoever is asked."""

    region: str | None = None


async def _start_move(surface: OperationSurface, request: Request) -> Response:
    project = path.project_id(raw(request, "project"))
    asked = decode_json(await surface.body(request), MoveTo)
    if asked.mb_per_sec < 0 or (asked.keep_hours or 0) < 0:
        raise BadRequest("mb_per_sec and keep_hours are no less than 0")
    keep_hours = surface.operations.move_keep_hours if asked.keep_hours is None else asked.keep_hours
    given = {"project": project, "to": asked.to, "mb_per_sec": asked.mb_per_sec, "keep_hours": keep_hours}
    move = operation("MoveProject", given)
    await _check_regions(surface, move)
    described = await surface.operations.start(move)
    there = (await surface.operations.asked(move.id))["to"]
    if there != asked.to:
        raise OnItsWay(f"{project} is on its way to {there}")
    return surface.json(described)


async def _follow_move(surface: OperationSurface, request: Request) -> Response:
    return surface.json(await surface.operations.describe(f"move-{path.project_id(raw(request, 'project'))}"))


async def _cancel_move(surface: OperationSurface, request: Request) -> Response:
    return surface.json(await surface.operations.cancel(f"move-{path.project_id(raw(request, 'project'))}"))


async def _start_drain(surface: OperationSurface, request: Request) -> Response:
    asked = decode_json(await surface.body(request) or b"{}", RegionBody)
    region = asked.region or surface.operations.region
    return await _start(surface, operation("DrainNode", {"node": _node(request), "region": region}))


async def _follow_drain(surface: OperationSurface, request: Request) -> Response:
    return surface.json(await surface.operations.describe(f"drain-{_node(request)}"))


async def _cancel_drain(surface: OperationSurface, request: Request) -> Response:
    return surface.json(await surface.operations.cancel(f"drain-{_node(request)}"))


async def _follow_incident(surface: OperationSurface, request: Request) -> Response:
    return surface.json(await surface.operations.describe(_incident(request)))


async def _decide_incident(surface: OperationSurface, request: Request) -> Response:
    """`apply`, `keep` and `export` are the workflow's signals of those names."""
    decision = path.decode_segment(raw(request, "decision"))
    if decision not in DECISIONS:
        raise BadRequest(f"an incident takes {', '.join(DECISIONS)}; not {decision!r}")
    await surface.operations.signal(_incident(request), decision)
    return surface.json(await surface.operations.describe(_incident(request)))


async def _start_any(surface: OperationSurface, request: Request) -> Response:
    asked = decode_json(await surface.body(request), StartBody)
    return await _start(surface, operation(asked.workflow, asked.input))


async def _follow_any(surface: OperationSurface, request: Request) -> Response:
    return surface.json(await surface.operations.describe(_id(request)))


async def _cancel_any(surface: OperationSurface, request: Request) -> Response:
    return surface.json(await surface.operations.cancel(_id(request)))


async def _signal_any(surface: OperationSurface, request: Request) -> Response:
    """`go_on` accepts what an operation asks about; `stop` ends one that runs until it is told to."""
    signal = path.decode_segment(raw(request, "signal"))
    if signal not in SIGNALS:
        raise BadRequest(f"an operation takes {', '.join(SIGNALS)}; not {signal!r}")
    await surface.operations.signal(_id(request), signal)
    return surface.json(await surface.operations.describe(_id(request)))


OPERATION_RESOURCES: Resources = (
    ("/v1/projects/{project}/move", {"GET": _follow_move, "POST": _start_move, "DELETE": _cancel_move}),
    ("/v1/nodes/{node}/drain", {"GET": _follow_drain, "POST": _start_drain, "DELETE": _cancel_drain}),
    ("/v1/incidents/{object_id}/{epoch}", {"GET": _follow_incident}),
    ("/v1/incidents/{object_id}/{epoch}/{decision}", {"POST": _decide_incident}),
    ("/v1/control/operations", {"POST": _start_any}),
    ("/v1/control/operations/{id}/{signal}", {"POST": _signal_any}),
    ("/v1/control/operations/{id}", {"GET": _follow_any, "DELETE": _cancel_any}),
)


async def _start(surface: OperationSurface, wanted: Operation) -> Response:
    await _check_regions(surface, wanted)
    return surface.json(await surface.operations.start(wanted))


async def _check_regions(surface: OperationSurface, wanted: Operation) -> None:
    """Where it is to run, and where to: nobody ever is a worker of a region that does not exist."""
    for region in (wanted.input.get("region", surface.operations.region), wanted.input.get("to")):
        if region in (None, surface.operations.region):
            continue
        if not isinstance(region, str):
            raise BadRequest("a region is given by its name, as text")
        if not await surface.is_region(region):
            raise NoSuchRegion(f"there is no region {region!r}; there are {', '.join(sorted(await surface.regions()))}")


def _node(request: Request) -> str:
    return _shaped(request, "node", NODE_RE, "a node's id")


def _id(request: Request) -> str:
    return _shaped(request, "id", ID_RE, "an operation's id")


def _incident(request: Request) -> str:
    return "incident-{}-{}".format(*incident_of(request))


def incident_of(request: Request) -> tuple[str, str]:
    """(object id, epoch) of the path. Raises BadRequest."""
    object_id = _shaped(request, "object_id", INCIDENT_RE, "an object's id")
    return object_id, _shaped(request, "epoch", EPOCH_RE, "an epoch")


def _shaped(request: Request, parameter: str, shape: re.Pattern[str], what: str) -> str:
    text = path.decode_segment(raw(request, parameter))
    if not shape.fullmatch(text):
        raise BadRequest(f"{text!r} is not {what}")
    return text
