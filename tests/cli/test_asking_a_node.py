"""How commands ask a node: paths, retries, keys, exit codes. The server is real, its answers are scripted."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domicile.cli.failures import CliError, Exit
from domicile.cli.http import Node, Waits, path

Run = Callable[..., "subprocess.CompletedProcess[str]"]


class Time:
    """A clock that stands still until somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, secs: float) -> None:
        self.slept.append(secs)
        self.now += secs


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def node(scripted: Any, time: Time) -> Node:
    return Node(scripted.url, Waits(10, time.monotonic, time.sleep), "secret")


def test_names_are_one_segment_each() -> None:
    """A name's slashes, dots and percent signs reach the node as the name, not as a path."""
    assert path("demo", "objects", "Room", "a/b %2F é") == "/v1/demo/objects/Room/a%2Fb%20%252F%20%C3%A9"
    assert path("demo", "objects", "Room", "..") == "/v1/demo/objects/Room/%2E%2E"
    assert path("demo", "objects", "Room", "lot.42") == "/v1/demo/objects/Room/lot.42"


@given(st.text(min_size=1).filter(lambda name: not any("\ud800" <= char <= "\udfff" for char in name)))
def test_any_name_is_a_safe_segment(name: str) -> None:
    """No name adds a segment, a query, white space or a step up to the path."""
    at = path("demo", name)
    assert at.isascii()
    assert at.count("/") == 3
    assert not set(at) & set("?#; \r\n\t")
    assert at.rsplit("/", 1)[1] not in (".", "..")


def test_a_retryable_answer_is_tried_again_with_the_same_key(scripted: Any, node: Node, time: Time) -> None:
    """The request is repeated after Retry-After, byte for byte and with its key, until it is answered."""
    scripted.problem(503, "2", code="overloaded", retryable=True, outcome="not_run")
    scripted.problem(504, "0.5", code="outcome_unknown", retryable=True, outcome="unknown")
    scripted.result({"ok": True})
    assert node.send("POST", "/v1/x", "[1]", {"Idempotency-Key": "k"}) == {"ok": True}
    assert time.slept == [2.0, 0.5]
    assert [(verb, at, headers["Idempotency-Key"], body) for verb, at, headers, body in scripted.asked] == [
        ("POST", "/v1/x", "k", b"[1]")
    ] * 3
    assert scripted.asked[0][2]["Authorization"] == "Bearer secret"


def test_an_unknown_outcome_without_a_key_is_not_tried_again(scripted: Any, node: Node) -> None:
    """Without a key a repeated write could run twice, so the caller is told instead."""
    scripted.problem(504, code="outcome_unknown", retryable=True, outcome="unknown")
    with pytest.raises(CliError) as raised:
        node.send("POST", "/v1/x", "[1]")
    assert raised.value.exit_code == Exit.UNKNOWN
    assert len(scripted.asked) == 1


def test_trying_ends_when_the_time_is_up(scripted: Any, node: Node, time: Time) -> None:
    """A node that stays busy ends the command with exit code 4 within its --wait."""
    for _ in range(4):
        scripted.problem(503, "4", code="overloaded", retryable=True, outcome="not_run")
    with pytest.raises(CliError) as raised:
        node.send("POST", "/v1/x", "[1]")
    assert raised.value.exit_code == Exit.RETRYABLE
    assert sum(time.slept) <= 10


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"outcome": "ran", "retryable": False}, Exit.FAILED),
        ({"outcome": "not_run", "retryable": False}, Exit.FAILED),
        ({"outcome": "unknown", "retryable": False}, Exit.UNKNOWN),
    ],
)
def test_exit_codes_follow_the_outcome(scripted: Any, node: Node, members: dict[str, Any], code: Exit) -> None:
    """A script learns from the exit code whether the call ran."""
    scripted.problem(422, code="method_failed", detail="ValueError: no", **members)
    with pytest.raises(CliError) as raised:
        node.send("POST", "/v1/x")
    assert raised.value.exit_code == code
    assert raised.value.document()["code"] == "method_failed"


def test_a_server_that_is_no_node_is_told_apart(scripted: Any, node: Node) -> None:
    """An answer that is not JSON says that the address is wrong, not that a call failed."""
    scripted.answers.append((200, {}, b"<html>"))
    with pytest.raises(CliError) as raised:
        node.get("/v1/x")
    assert raised.value.exit_code == Exit.UNREACHABLE


def test_a_lost_answer_is_unknown(scripted: Any, node: Node) -> None:
    """A connection that breaks after a write was sent leaves its outcome unknown, and the advice names the key."""
    scripted.answers.append((0, {}, b""))
    with pytest.raises(CliError) as raised:
        node.send("POST", "/v1/x", "[1]", {"Idempotency-Key": "k"})
    assert raised.value.exit_code == Exit.UNKNOWN
    assert "--key" in raised.value.advice


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://127.0.0.1", "http://"])
def test_a_bad_address_is_a_usage_error(url: str, time: Time) -> None:
    """What cannot be an address is refused before anything is sent."""
    with pytest.raises(CliError) as raised:
        Node(url, Waits(1, time.monotonic, time.sleep))
    assert raised.value.exit_code == Exit.USAGE


def test_no_node_exits_3_and_says_what_to_do(domicile: Run, free_port: int) -> None:
    """A node that is not there is told in two lines, without a trace."""
    refused = domicile("ls", "demo", "--url", f"http://127.0.0.1:{free_port}")
    assert refused.returncode == 3
    assert "domicile dev" in refused.stderr
    assert len(refused.stderr.splitlines()) == 2


def test_failures_are_json_for_scripts(domicile: Run, free_port: int) -> None:
    """With --json an error is one JSON object on stderr and stdout stays empty."""
    refused = domicile("ls", "demo", "--json", DOMICILE_URL=f"http://127.0.0.1:{free_port}")
    assert refused.stdout == ""
    assert json.loads(refused.stderr)["exit_code"] == refused.returncode == 3


@pytest.mark.parametrize("arguments", ["ada", "25", '"ada"', "[1"])
def test_arguments_that_are_no_list_or_object_are_refused_here(domicile: Run, arguments: str, free_port: int) -> None:
    """A slip in the shell's quoting is explained before anything is sent."""
    url = f"http://127.0.0.1:{free_port}"
    assert domicile("call", "demo", "A", "x", "bid", arguments, "--url", url).returncode == 2


def test_listing_follows_every_page(domicile: Run, scripted: Any) -> None:
    """All pages of a directory are one result."""
    scripted.result({"objects": [{"class": "A", "name": "x", "id": "1"}], "token": "a b&c"})
    scripted.result({"objects": [{"class": "A", "name": "y", "id": "2"}], "token": None})
    listed = domicile("ls", "demo", "--class", "A", "--json", "--url", scripted.url)
    assert [row["name"] for row in json.loads(listed.stdout)] == ["x", "y"]
    assert scripted.asked[1][1] == "/v1/demo/objects?class=A&token=a+b%26c"


def test_a_failover_that_nobody_confirms_is_given_up(domicile: Run, scripted: Any) -> None:
    """Without a person to say so it is cancelled, and not left waiting with its question."""
    loss = {"step": "ask", "lag_secs": 3.0, "counted": True, "lost_objects": 1, "missing_objects": 0, "lost_bytes": 9}
    for _ in range(2):
        scripted.result({"id": "failover-demo", "status": "running", "progress": loss, "steps": []})
    given_up = domicile("project", "failover", "demo", "--to", "b", "--url", scripted.url)
    assert (given_up.returncode, "1 objects" in given_up.stderr) == (1, True)
    assert "nothing was done" in given_up.stderr
    assert "--accept-loss" in given_up.stderr
    asked = [(verb, at) for verb, at, _, _ in scripted.asked]
    operations = "/v1/control/operations"
    assert asked == [("POST", operations), ("DELETE", f"{operations}/failover-demo")]


def test_sql_that_would_write_says_how_it_may(domicile: Run, scripted: Any) -> None:
    """The command reads unless told otherwise: a refused write is no fault of the class."""
    scripted.problem(422, detail="it may not write", code="sql_refused", outcome="ran", retryable=False)
    refused = domicile("sql", "demo", "catalog", "DELETE FROM t", "--url", scripted.url)
    assert (refused.returncode, "--write" in refused.stderr) == (1, True)


def test_delete_asks_first(domicile: Run, scripted: Any) -> None:
    """Without --yes and without a person to say so nothing is deleted."""
    refused = domicile("delete", "demo", "A", "x", "--url", scripted.url)
    assert refused.returncode == 1
    assert scripted.asked == []
