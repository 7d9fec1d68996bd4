"""The search attributes of a run: which project or region it is about, and the step it is at (PROTOCOLS section 10)."""

from __future__ import annotations

from temporalio import workflow
from temporalio.common import SearchAttributeKey

_PROJECT = SearchAttributeKey.for_keyword("DomicileProject")
_REGION = SearchAttributeKey.for_keyword("DomicileRegion")
_STEP = SearchAttributeKey.for_keyword("DomicileStep")


def mark(*, project: str | None = None, region: str | None = None, step: str | None = None) -> None:
    """Set those that are given, from within a workflow."""
    given = ((_PROJECT, project), (_REGION, region), (_STEP, step))
    workflow.upsert_search_attributes([key.value_set(value) for key, value in given if value is not None])
