"""Problem documents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from domicile.errors import BY_CODE, BadName, DomicileError, MethodFailed, Moving, NotHome, NotServing
from domicile.node.problems import MethodNotAllowed, Problems, document, parse


class Log:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def error(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))


@pytest.mark.parametrize("cls", BY_CODE.values(), ids=lambda cls: cls.code)
def test_every_error_survives_the_document(cls: type[DomicileError]) -> None:
    """Class, detail, outcome, retry hint and extra come back from the document of each error in the tree."""
    error = cls("what happened", chain=["a", "b"])

    back = parse(Problems(Log(), lambda: "n1").render(error).body)

    assert type(back) is cls
    assert (back.detail, back.outcome, back.retry_after) == ("what happened", error.outcome, error.retry_after)
    assert back.extra == {"chain": ["a", "b"]}


def test_a_document_is_this() -> None:
    """The bytes of one document, as sent."""
    reply = Problems(Log(), lambda: "n1").render(MethodFailed("ValueError: no", type="ValueError", message="no"))

    assert reply.body == (
        b'{"type":"urn:domicile:problem:method_failed","message":"no","title":"The method raised an exception",'
        b'"status":422,"detail":"ValueError: no","code":"method_failed","retryable":false,"outcome":"ran"}'
    )
    assert reply.headers == [(b"content-type", b"application/problem+json")]


def test_the_outcome_of_a_read_that_may_not_leave_is_kept() -> None:
    """`not_serving` may say `ran`, and says so on the other side too."""
    error = NotServing("late")
    error.outcome = "ran"

    assert parse(json.dumps(document(error)).encode()).outcome == "ran"


@pytest.mark.parametrize(("error", "secs"), [(Moving(), b"1"), (NotHome(), b"1"), (NotServing(), b"1")])
def test_every_503_says_when_to_retry(error: DomicileError, secs: bytes) -> None:
    """Retry-After is there, in whole seconds and at least one."""
    assert (b"retry-after", secs) in Problems(Log(), lambda: "n1").render(error).headers


def test_what_is_not_in_the_tree_is_logged_under_an_id_and_not_shown() -> None:
    """A bug becomes `internal` with outcome unknown; its text and trace stay in the log."""
    log = Log()
    bug = KeyError("/home/secret")

    reply = Problems(log, lambda: "n1").render(bug)

    shown = json.loads(reply.body)
    assert (reply.status, shown["code"], shown["outcome"], shown["error_id"]) == (500, "internal", "unknown", "n1-1")
    assert "secret" not in reply.body.decode()
    assert log.events == [("http.internal_error", {"error_id": "n1-1", "exc_info": bug})]


def test_extra_does_not_hide_what_the_document_is() -> None:
    """An error's extra cannot pass for the standard members."""
    shown = document(BadName("no", status=200, code="fine"))

    assert (shown["status"], shown["code"]) == (400, "bad_name")


def test_text_that_is_no_unicode_is_escaped() -> None:
    """An object's message with half a surrogate pair is still a JSON document."""
    body = Problems(Log(), lambda: "n1").render(MethodFailed("half \ud83d")).body

    assert json.loads(body)["detail"] == "half \ud83d"


def test_a_wrong_method_names_the_right_ones() -> None:
    """405 has Allow."""
    reply = Problems(Log(), lambda: "n1").render(MethodNotAllowed("GET, PUT"))

    assert reply.status == 405
    assert (b"allow", b"GET, PUT") in reply.headers


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"<html>", b'{"code":"moving","detail":1,"outcome":"ran"}', b"\xff"]
)
def test_what_is_no_problem_document_is_an_internal_error(body: bytes) -> None:
    """Another server's page in the way of an answer leaves the outcome unknown."""
    error = parse(body)

    assert (type(error), error.outcome) == (DomicileError, "unknown")
