"""Names in URLs: each allowed one is its own object, decoded once (field case 103)."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domicile.errors import BadName, BadRequest
from domicile.node.http.path import call_target, decode_segment
from domicile.placement.records import ObjectKey

# What stands in the URL, and the name it is.
WRITTEN = {
    "a%2Fb": "a/b", "a%252Fb": "a%2Fb", "a%25252Fb": "a%252Fb", "..": "..", ".": ".", "%2e%2E%2f": "../",
    "%20": " ", "a%20b": "a b", "a+b": "a+b", "a%2Bb%2b": "a+b+", "%C3%A9": "é", "e%CC%81": "e\u0301", "%23": "#",
    "%3Fx=1": "?x=1", "%1F": "\x1f", "x": "x", "A": "A", "a": "a", ";": ";", "a;b=c": "a;b=c", "%F0%9F%8E%89": "🎉",
    "a%2Fb%2F": "a/b/", "%25": "%", "eu-west%2Flot": "eu-west/lot", "%0D%0A": "\r\n",
    "=&,:@!$'()*~_-": "=&,:@!$'()*~_-",
    "x" * 255: "x" * 255, "%C3%A9" * 127: "é" * 127,
}  # fmt: skip
REFUSED = {
    "%00": "bad_name", "a%00b": "bad_name", "x" * 256: "bad_name", "%C3%A9" * 128: "bad_name", "x" * 5120: "bad_name",
    "%FF": "bad_name", "%C3": "bad_name", "%ED%A0%80": "bad_name", "%C0%AF": "bad_name", "": "bad_name",
    "%": "bad_request", "%2": "bad_request", "a%zzb": "bad_request", "%u0041": "bad_request",
}  # fmt: skip


def send(http: Any, target: str, method: str = "POST", body: bytes = b"") -> tuple[int, Any]:
    """Over a bare socket: clients normalize paths."""
    raw = f"{method} {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = http.exchange(raw.encode("latin-1") + body)
    head, _, text = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(text)


def test_every_allowed_name_is_its_own_object(http: Any) -> None:
    """What was put under a name comes back under it, and no two names share an object."""
    for written, name in WRITTEN.items():
        assert send(http, f"/v1/acme/objects/Probe/{written}/put", body=json.dumps([name]).encode())[0] == 200
    found = {name: send(http, f"/v1/acme/objects/Probe/{written}/get") for written, name in WRITTEN.items()}
    described = {name: send(http, f"/v1/acme/objects/Probe/{written}", "GET")[0] for written, name in WRITTEN.items()}

    assert found == {name: (200, [name]) for name in WRITTEN.values()}
    assert set(described.values()) == {200}
    keys = [key for key in http.front.objects if key.cls == "Probe"]
    assert sorted(key.name for key in keys) == sorted(WRITTEN.values())


@pytest.mark.parametrize("written", REFUSED, ids=lambda w: w[:12] or "empty")
def test_a_forbidden_name_is_refused_at_once(http: Any, written: str) -> None:
    """NUL, too long, broken escapes and broken UTF-8 reach no object."""
    status, problem = send(http, f"/v1/acme/objects/Probe/{written}/put", body=b"[1]")

    assert (status, problem["code"], problem["outcome"]) == (400, REFUSED[written], "not_run")


def test_the_other_routes_read_names_the_same_way(http: Any) -> None:
    """Describe, delete and databases decode once too."""
    send(http, "/v1/acme/objects/Other/a%2Fb/put", body=b"[1]")
    http.front.calls.clear()
    send(http, "/v1/acme/databases/a%252Fb/exec", body=b'{"sql":"x"}')

    assert [call.key for call in http.front.calls] == [ObjectKey("acme", "Database", "a%2Fb")]
    assert send(http, "/v1/acme/objects/Other/a%252Fb", "GET")[0] == 404
    assert send(http, "/v1/acme/objects/Other/a%2Fb", "DELETE")[0] == 200
    assert send(http, "/v1/acme/objects/Other/%FF", "DELETE")[1]["code"] == "bad_name"


@pytest.mark.parametrize(
    "target",
    ["/v1/acme/objects/Probe/x/get/", "//v1/acme/objects/Probe/x/get", "/v1/acme/objects/Probe/a/b/get", "/v1//"],
)
def test_a_slash_more_is_no_other_object(http: Any, target: str) -> None:
    """A path with an empty or additional segment names nothing."""
    status, problem = send(http, target)

    assert (status, problem["code"]) == (404, "bad_request")
    assert send(http, "/v1/acme/objects/Probe/x/")[1]["code"] == "no_such_method"


def test_a_fragment_or_raw_bytes_in_the_target_are_refused(http: Any) -> None:
    """What a client forgot to encode is not cut off into another object's name."""
    assert send(http, "/v1/acme/objects/Probe/a#b/get")[0] == 400
    assert send(http, "/v1/acme/objects/Probe/\xe9/get")[0] == 400


def test_an_absolute_target_is_the_same_resource(http: Any) -> None:
    """Proxies may send the whole URL; the query is no part of a name."""
    send(http, "/v1/acme/objects/Probe/abs/put", body=b"[7]")

    assert send(http, "http://h/v1/acme/objects/Probe/abs/get") == (200, [7])
    assert send(http, "/v1/acme/objects/Probe/abs/get?x=/y") == (200, [7])


@pytest.mark.parametrize(
    "project", ["projects", "cluster", "incidents", "regions", "control", "Acme", "-a", "a.b", "x" * 64]
)
def test_reserved_and_misspelt_projects_are_refused(http: Any, project: str) -> None:
    """Reserved words and what is no project id are `bad_name` on every route that has one."""
    for method, target in [
        ("POST", f"/v1/{project}/objects/Probe/x/get"),
        ("GET", f"/v1/{project}/objects"),
        ("POST", f"/v1/{project}/databases/x/query"),
        ("POST", f"/v1/{project}/batch"),
        ("PUT", f"/v1/projects/{project}"),
    ]:
        if target in ("/v1/projects/objects", "/v1/projects/batch"):
            continue  # the projects of these names
        status, problem = send(http, target, method, b'{"sql":"x"}')
        assert (status, problem["code"]) == (400, "bad_name"), target


def test_a_class_that_is_no_identifier_and_a_method_that_is_none(http: Any) -> None:
    """Each is refused as what it is."""
    assert send(http, "/v1/acme/objects/a-b/x/get")[1]["code"] == "bad_name"
    assert send(http, "/v1/acme/objects/Probe/x/a-b")[1]["code"] == "no_such_method"


@given(st.text(min_size=1, max_size=100))
@settings(max_examples=200)
def test_quoting_and_decoding_are_inverse(name: str) -> None:
    """Whatever a client quotes, with more or fewer characters escaped, comes out as it was."""
    try:
        everything = "".join(f"%{byte:02x}" for byte in name.encode())
    except UnicodeEncodeError:
        return
    assert decode_segment(quote(name, safe="").encode()) == name
    assert decode_segment(everything.encode()) == name


@given(st.binary(max_size=60))
@settings(max_examples=200)
def test_any_bytes_are_a_target_or_refused(segment: bytes) -> None:
    """No path makes anything but a target or one of the two refusals."""
    try:
        key, method = call_target(b"/v1/acme/objects/Probe/" + segment.replace(b"/", b"%2F") + b"/get")
    except (BadName, BadRequest):
        return
    assert (key.cls, method) == ("Probe", "get")
    assert 1 <= len(key.name.encode()) <= 255


def test_the_socket_is_really_closed_when_the_answer_said_so(http: Any) -> None:
    """`Connection: close` is kept."""
    with http.connect() as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        got = b""
        while piece := sock.recv(4096):
            got += piece
        sock.shutdown(socket.SHUT_WR)

    assert b"connection: close\r\n" in got
