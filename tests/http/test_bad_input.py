"""Every endpoint against input generated from the OpenAPI document, over the wire."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from domicile.node.openapi import DOCUMENT

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
OPERATIONS = [(method, path) for path, item in DOCUMENT["paths"].items() for method in item]
VALID, INVALID = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE


def takes_input(method: str, path: str) -> bool:
    operation = DOCUMENT["paths"][path][method]
    return bool(operation["parameters"] or "requestBody" in operation)


@pytest.mark.parametrize("mode", [VALID, INVALID], ids=["valid", "invalid"])
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_generated_input_breaks_the_surface(http: Any, method: str, path: str, mode: Any) -> None:
    """Valid or not, every request gets a documented status and body, and never a 500 of ours."""
    if mode is INVALID and not takes_input(method, path):
        return  # nothing to get wrong
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    schema.config.update(base_url=http.url)
    seen: set[int] = set()

    @given(case=schema[path][method.upper()].as_strategy(generation_mode=mode))
    @settings(
        max_examples=12,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:
        seen.add(case.call_and_validate(checks=CHECKS).status_code)

    check()
    assert seen
    assert not http.log.events, http.log.events
