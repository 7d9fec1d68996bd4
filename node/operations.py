"""Operations: starting, following and cancelling workflows by their names (PROTOCOLS section 10).

The one adapter over Temporal's client outside the workers; a node that has no `TEMPORAL` never loads the driver. Ids
are stable, so starting what runs already is joining it, and what has ended is started anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from domicile.errors import BadRequest, NotServing
from domicile.node.config import Config
from domicile.placement.records import ObjectKey

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowExecutionDescription, WorkflowHandle

QUEUE = "domicile-control"  # where every workflow runs; `workflows.queues` says the same
RPC_TIMEOUT = timedelta(seconds=5)
QUERY_TIMEOUT = timedelta(seconds=3)
# What can be started: the first part of its id, and the fields of its input that make the rest.
IDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "CollectGarbage": ("collect", ("region",)),
    "DrainNode": ("drain", ("node",)),
    "FailoverRegion": ("failover", ("project",)),
    "MoveObject": ("move-object", ("project", "cls", "name")),
    "MoveProject": ("move", ("project",)),
    "RecoverIncident": ("incident", ("object_id", "epoch")),
    "ReplicateProject": ("replicate", ("project",)),
    "Scrub": ("scrub", ("region",)),
    "SweepAlarms": ("sweep", ("region",)),
}
# What else of its input has to be said, or the run that is started can never read it.
MORE: dict[str, tuple[str, ...]] = {
    "DrainNode": ("region",),
    "FailoverRegion": ("to",),
    "MoveObject": ("to",),
    "MoveProject": ("to",),
    "RecoverIncident": ("region",),
    "ReplicateProject": ("to",),
}


class NoSuchOperation(BadRequest):
    """Nothing was ever started under this id, or Temporal has forgotten it."""

    status, title = 404, "There is no such operation"


class NotCancellable(BadRequest):
    """The operation has ended, or is past the point of no return and rolls forward."""

    status, title = 409, "The operation can no longer be cancelled"


@dataclass(frozen=True, slots=True)
class Operation:
    """What to start: the workflow's type, its id, and its input as JSON values."""

    workflow: str
    id: str
    input: Mapping[str, Any]


class Operations:
    """Connects when first asked. Everything raises NotServing when Temporal does not answer."""

    def __init__(self, config: Config) -> None:
        """Raises nothing: where `TEMPORAL` is empty, whatever is asked raises BadRequest."""
        self._config = config
        self._client: Client | None = None
        self._connecting = asyncio.Lock()

    @property
    def move_keep_hours(self) -> float:
        """How long a move leaves the old copy, where nobody says otherwise."""
        return self._config.move_keep_hours

    @property
    def region(self) -> str:
        """The region of whoever is asked."""
        return self._config.region

    async def client(self) -> Client:
        """Temporal's own client. Raises BadRequest where no Temporal is configured, NotServing."""
        if not self._config.temporal:
            raise BadRequest("operations need Temporal: set TEMPORAL, or try `domicile dev APP --temporal`")
        async with self._connecting:
            if self._client is None:
                try:
                    self._client = await connect(self._config)
                except (RuntimeError, OSError) as error:
                    raise NotServing(f"Temporal at {self._config.temporal} does not answer: {error}") from error
        return self._client

    async def check(self) -> None:
        """Whether Temporal answers and has the namespace. Raises BadRequest, NotServing."""
        from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
        from temporalio.service import RPCError

        client, namespace = await self.client(), self._config.temporal_namespace
        try:
            asked = DescribeNamespaceRequest(namespace=namespace)
            await client.workflow_service.describe_namespace(asked, timeout=RPC_TIMEOUT)
        except RPCError as error:
            raise NotServing(f"Temporal at {self._config.temporal}, namespace {namespace}: {error.message}") from error

    async def start(self, operation: Operation) -> dict[str, Any]:
        """Start it, or join the one that runs; gives what `describe` does."""
        from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
        from temporalio.service import RPCError

        client = await self.client()
        try:
            await client.start_workflow(
                operation.workflow,
                dict(operation.input),
                id=operation.id,
                task_queue=QUEUE,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                rpc_timeout=RPC_TIMEOUT,
            )
        except RPCError as error:
            raise _translated(error, operation.id) from error
        return await self.describe(operation.id)

    async def describe(self, operation_id: str) -> dict[str, Any]:
        """Of the latest run: {id, workflow, status, started, ended, progress, step, result, failure}.

        `status` is running, completed, failed, canceled, terminated or timed_out. `progress` is the workflow's own
        (None when no control process answers), `step` the activities under way with what they last reported.
        Raises NoSuchOperation.
        """
        from temporalio.service import RPCError

        handle = (await self.client()).get_workflow_handle(operation_id)
        try:
            found = await handle.describe(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            raise _translated(error, operation_id) from error
        status = found.status.name.lower() if found.status is not None else "unknown"
        result, failure = await _outcome(handle, status)
        return {
            "id": operation_id,
            "workflow": found.workflow_type,
            "status": status,
            "started": found.start_time.isoformat(),
            "ended": found.close_time.isoformat() if found.close_time else None,
            "progress": await _progress(handle),
            "steps": await _steps(found) if status == "running" else [],
            "result": result,
            "failure": failure,
        }

    async def asked(self, operation_id: str) -> dict[str, Any]:
        """The input of the latest run, which is there even while nobody answers for its progress. Raises
        NoSuchOperation, NotServing."""
        from temporalio.service import RPCError

        client = await self.client()
        events = client.get_workflow_handle(operation_id).fetch_history_events(page_size=1, rpc_timeout=RPC_TIMEOUT)
        try:
            first = await anext(events)
        except RPCError as error:
            raise _translated(error, operation_id) from error
        payloads = first.workflow_execution_started_event_attributes.input.payloads
        given: dict[str, Any] = (await client.data_converter.decode(payloads))[0]
        return given

    async def cancel(self, operation_id: str) -> dict[str, Any]:
        """Ask it to undo what it did and end; gives what `describe` does. Raises NoSuchOperation, NotCancellable."""
        from temporalio.service import RPCError

        described = await self.describe(operation_id)
        if described["status"] != "running":
            raise NotCancellable(f"{operation_id} has ended: {described['status']}")
        if (described["progress"] or {}).get("cancellable") is False:
            raise NotCancellable(f"{operation_id} is past the point of no return: it rolls forward")
        try:
            await (await self.client()).get_workflow_handle(operation_id).cancel(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            raise _translated(error, operation_id) from error
        return await self.describe(operation_id)

    async def signal(self, operation_id: str, name: str, *args: Any) -> None:
        """Raises NoSuchOperation, also when it has ended."""
        from temporalio.service import RPCError

        try:
            handle = (await self.client()).get_workflow_handle(operation_id)
            await handle.signal(name, args=list(args), rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            raise _translated(error, operation_id) from error


def operation(workflow: str, given: Mapping[str, Any]) -> Operation:
    """A workflow, its id drawn from its input. Raises BadRequest: no such workflow, or its name's parts are missing."""
    if workflow not in IDS:
        raise BadRequest(f"there is no operation {workflow!r}; there are {', '.join(sorted(IDS))}")
    parts = IDS[workflow][1]
    needed = (*parts, *MORE.get(workflow, ()))
    missing = [name for name in needed if not isinstance(given.get(name), str) or not given[name]]
    if missing:
        raise BadRequest(f"{workflow} needs {', '.join(missing)}, as text")
    if workflow == "MoveObject":
        named = ObjectKey.checked(given["project"], given["cls"], given["name"]).id
    else:
        named = "-".join(given[name] for name in parts)
    return Operation(workflow, f"{IDS[workflow][0]}-{named}", given)


async def connect(config: Config) -> Client:
    """A client of the Temporal that the settings name. Raises RuntimeError when it does not answer, OSError."""
    from temporalio.client import Client
    from temporalio.service import TLSConfig

    tls: TLSConfig | bool = False
    if config.temporal_ca_file or config.temporal_cert_file:
        tls = TLSConfig(
            server_root_ca_cert=_file(config.temporal_ca_file),
            client_cert=_file(config.temporal_cert_file),
            client_private_key=_file(config.temporal_key_file),
        )
    return await Client.connect(config.temporal, namespace=config.temporal_namespace, tls=tls)


def _file(path: str) -> bytes | None:
    return Path(path).read_bytes() if path else None


def _translated(error: Any, operation_id: str) -> BadRequest | NotServing:
    from temporalio.service import RPCStatusCode

    if error.status == RPCStatusCode.NOT_FOUND:
        return NoSuchOperation(f"there is no operation {operation_id} under way or remembered")
    if error.status == RPCStatusCode.INVALID_ARGUMENT:
        return BadRequest(f"Temporal refuses: {error.message}")
    return NotServing(f"Temporal does not answer: {error.message}")


async def _outcome(handle: WorkflowHandle[Any, Any], status: str) -> tuple[Any, str | None]:
    """(result, why it failed) of a run that has ended."""
    from temporalio.client import WorkflowFailureError
    from temporalio.service import RPCError

    if status not in ("completed", "failed"):
        return None, None
    try:
        return await handle.result(rpc_timeout=RPC_TIMEOUT), None
    except WorkflowFailureError as error:
        return None, _root(error)
    except RPCError as error:
        return None, error.message


async def _progress(handle: WorkflowHandle[Any, Any]) -> dict[str, Any] | None:
    from temporalio.client import WorkflowQueryFailedError, WorkflowQueryRejectedError
    from temporalio.service import RPCError

    try:
        progress: dict[str, Any] = await handle.query("progress", rpc_timeout=QUERY_TIMEOUT)
    except (RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError):
        return None
    return progress


async def _steps(found: WorkflowExecutionDescription) -> list[dict[str, Any]]:
    """The activities under way: {name, attempt, reported, failure}."""
    steps = []
    for pending in found.raw_description.pending_activities:
        details = await found.data_converter.decode(pending.heartbeat_details.payloads)
        failure = pending.last_failure.message or None
        name = pending.activity_type.name
        steps.append({"name": name, "attempt": pending.attempt, "reported": details, "failure": failure})
    return steps


def _root(error: BaseException) -> str:
    """The innermost reason, which says most."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)
