"""Search attributes by which operations are found in Temporal (PROTOCOLS section 10): registered when control starts.

`DomicileProject`, `DomicileRegion` and `DomicileStep`, keywords all. In Temporal's UI and CLI:
`DomicileProject = "acme" AND ExecutionStatus = "Running"`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from domicile.node.clock import Clock

NAMES = ("DomicileProject", "DomicileRegion", "DomicileStep")
LOOK_SECS = 0.1
READY_SECS = 30.0


class NotRegisteredError(Exception):
    """Temporal does not take search attributes from here: an operator has to register them."""


async def register(client: Client, clock: Clock, log: Any) -> None:
    """Once they are known to the namespace; done again harmlessly. Raises NotRegisteredError, RPCError."""
    missing = await _missing(client)
    if not missing:
        return
    keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=dict.fromkeys(missing, keyword))
    try:
        await client.operator_service.add_search_attributes(request)
    except RPCError as error:
        # Two control processes that start at once: the other's are as good.
        if error.status != RPCStatusCode.ALREADY_EXISTS:
            raise NotRegisteredError(
                f"search attributes {', '.join(missing)} cannot be registered: {error.message}; "
                "an operator can: temporal operator search-attribute create --type Keyword --name NAME"
            ) from error
    log.info("control.search-attributes", registered=missing)
    async with asyncio.timeout(READY_SECS):
        while await _missing(client):
            await clock.sleep(LOOK_SECS)


async def _missing(client: Client) -> list[str]:
    known = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    return [name for name in NAMES if name not in known.custom_attributes]
