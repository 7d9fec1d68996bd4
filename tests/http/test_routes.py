"""What each route reads, asks and answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from domicile.node.http.routes import RESOURCES
from domicile.node.openapi import DOCUMENT
from domicile.node.values import Call
from domicile.placement.records import Epoch, ObjectKey

CALL = "/v1/acme/objects/Probe/x/echo"


@pytest.fixture
def client(http: Any) -> Any:
    with http.client() as client:
        http.front.calls.clear()
        yield client


def last_call(http: Any) -> Call:
    call: Call = http.front.calls[-1]
    return call


def test_a_call_is_answered_with_its_result_and_its_home(http: Any, client: Any) -> None:
    """The answer is the JSON result; headers say which node, epoch and copy gave it."""
    answer = client.post(CALL, json=["ada", 25])

    assert (answer.status_code, answer.json()) == (200, ["ada", 25])
    named = {name: answer.headers[name] for name in ("Domicile-Node", "Domicile-Epoch", "Domicile-Served-By")}
    assert named == {"Domicile-Node": "n1", "Domicile-Epoch": "1.7", "Domicile-Served-By": "owner"}
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["date"].endswith("GMT")
    assert last_call(http).key == ObjectKey("acme", "Probe", "x")


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/json; charset=utf-8", "x/y"])
def test_any_content_type_is_taken(client: Any, content_type: str | None) -> None:
    """What the body is called does not matter; it is JSON."""
    headers = {} if content_type is None else {"content-type": content_type}

    assert client.post(CALL, content=b"[1]", headers=headers).json() == [1]


def test_a_content_encoding_is_refused(http: Any, client: Any) -> None:
    """No body is unpacked; `identity` is none."""
    refused = client.post(CALL, content=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})

    assert (refused.status_code, refused.json()["code"]) == (415, "bad_request")
    assert client.post(CALL, content=b"[]", headers={"Content-Encoding": "identity"}).status_code == 200
    assert len(http.front.calls) == 1


def test_headers_reach_the_call(http: Any, client: Any) -> None:
    """Key, incarnation, trace and deadline are read; the deadline is at most the configured one."""
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = {"Idempotency-Key": "k 1~", "If-Match": '"3.14"', "traceparent": trace, "Domicile-Timeout-Ms": "1500"}
    before = http.front.now()
    client.post(CALL, headers=headers)
    call = last_call(http)
    client.post(CALL, headers={"Domicile-Timeout-Ms": "999999999", "traceparent": "nonsense"})
    bounded = last_call(http)

    assert (call.idempotency_key, call.if_match, call.trace) == ("k 1~", Epoch(3, 14), trace)
    assert 1.5 <= call.deadline - before < 10
    assert bounded.deadline - before < 40
    assert bounded.trace is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Idempotency-Key", "k" * 256),
        ("Idempotency-Key", "a\tb"),
        ("Idempotency-Key", ""),
        ("Idempotency-Key", "é"),
        ("Domicile-Timeout-Ms", "0"),
        ("Domicile-Timeout-Ms", "-1"),
        ("Domicile-Timeout-Ms", "1.5"),
        ("Domicile-Timeout-Ms", "9" * 13),
        ("If-Match", "*"),
        ("If-Match", "7"),
        ("If-Match", "1.99999999999999999999"),
    ],
)
def test_a_header_that_cannot_be_meant_is_refused(http: Any, client: Any, name: str, value: str) -> None:
    """It is named, and nothing runs."""
    answer = client.post(CALL, headers=[(name.encode(), value.encode("latin-1"))])

    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert name.lower() in answer.json()["detail"].lower()
    assert http.front.calls == []


def test_a_header_that_comes_twice_is_refused(http: Any, client: Any) -> None:
    """Which of two keys was meant is not guessed."""
    answer = client.post(CALL, headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")])

    assert answer.status_code == 400
    assert http.front.calls == []


def test_an_objects_own_error_is_a_problem(client: Any) -> None:
    """method_failed with type and message, even one that is no Unicode."""
    answer = client.post("/v1/acme/objects/Probe/x/fail")

    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["code"], problem["outcome"], problem["type"]) == (
        "method_failed",
        "ran",
        "urn:domicile:problem:method_failed",
    )
    assert problem["message"] == "no \ud800"


@pytest.mark.parametrize("path", ["/v1/acme/objects/Probe/x/crash", "/v1/acme/databases/x/exec"])
def test_a_bug_is_an_internal_error_without_its_text(http: Any, client: Any, path: str, monkeypatch: Any) -> None:
    """On the call's way and on the other: 500, outcome unknown, logged under the id shown."""

    async def crash(call: Call) -> Any:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(http.front, "call", crash)
    answer = client.post(path, json={"sql": "x"})

    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["outcome"]) == (500, "internal", "unknown")
    assert "secret" not in answer.text
    assert http.log.events[-1][1]["error_id"] == problem["error_id"]


@pytest.mark.parametrize("depth", [1000, 100_000])
def test_deep_json_is_a_refusal(client: Any, depth: int) -> None:
    """Nesting without end is the caller's mistake on every route that reads JSON, not a crash."""
    deep = "[" * depth + "]" * depth
    database = client.post("/v1/acme/databases/x/exec", content='{"sql":"x","params":' + deep + "}")
    batch = client.post("/v1/acme/batch", content='[{"class":"P","name":"x","method":"echo","args":' + deep + "}]")

    assert {database.status_code, batch.status_code} <= {200, 400}
    if depth == 100_000:
        assert (database.status_code, database.json()["code"]) == (400, "bad_request")
        assert (batch.status_code, batch.json()["code"]) == (400, "bad_request")


def test_databases_are_objects_of_their_class(http: Any, client: Any) -> None:
    """Each method of a database is a call with keyword arguments; a batch has statements."""
    assert client.post("/v1/acme/databases/cat/query", json={"sql": "SELECT ?", "params": [1]}).status_code == 200
    query = last_call(http)
    assert client.post("/v1/acme/databases/cat/batch", json={"statements": [{"sql": "x"}]}).status_code == 200
    batch = last_call(http)

    assert (query.key, query.method) == (ObjectKey("acme", "Database", "cat"), "query")
    assert json.loads(query.body) == {"sql": "SELECT ?", "params": [1]}
    assert (batch.method, json.loads(batch.body)) == ("batch", {"statements": [{"sql": "x"}]})


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"sql":1}', b'{"sql":"x","a":1}', b'{"sql":"x","params":5}', b"\xff", b'{"sql":"\\ud800"}'],
)
def test_a_statement_that_is_none_is_refused(http: Any, client: Any, body: bytes) -> None:
    """Before the object is called."""
    answer = client.post("/v1/acme/databases/cat/query", content=body)

    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert http.front.calls == []


def test_an_unknown_database_method(client: Any) -> None:
    """404, and which there are."""
    answer = client.post("/v1/acme/databases/cat/drop", json={"sql": "x"})

    assert (answer.status_code, answer.json()["code"]) == (404, "no_such_method")


def test_a_batch_answers_each_call_in_order(http: Any, client: Any) -> None:
    """Results and problems stand where their calls stood; keys and arguments reach the objects."""
    lines = [
        {"class": "Probe", "name": "a/b", "method": "echo", "args": [1], "key": "k"},
        {"class": "Probe", "name": "x", "method": "fail"},
        {"class": "Probe", "name": "x", "method": "crash", "args": None},
        {"class": "Probe", "name": "x", "method": "echo", "args": {"a": 1}},
    ]
    answer = client.post("/v1/acme/batch", json=lines)

    assert answer.status_code == 200
    first, second, third, fourth = answer.json()
    assert (first, fourth) == ({"result": [1]}, {"result": {"a": 1}})
    assert (second["problem"]["code"], third["problem"]["code"]) == ("method_failed", "internal")
    assert [(call.key.name, call.idempotency_key) for call in http.front.calls][:2] == [("a/b", "k"), ("x", None)]
    assert http.front.calls[2].body == b""


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([{"class": "P", "name": "x", "method": "echo"}] * 101, "bad_request"),
        ([{"class": "P", "name": "", "method": "echo"}], "bad_name"),
        ([{"class": "P", "name": "x", "method": "echo", "key": "é"}], "bad_request"),
        ([{"class": "P", "name": "x"}], "bad_request"),
        ({"calls": []}, "bad_request"),
    ],
)
def test_a_batch_that_is_none_runs_nothing(http: Any, client: Any, lines: Any, code: str) -> None:
    """One line that cannot be read refuses the batch before anything runs."""
    answer = client.post("/v1/acme/batch", json=lines)

    assert (answer.status_code, answer.json()["code"], answer.json()["outcome"]) == (400, code, "not_run")
    assert http.front.calls == []


def test_objects_are_listed_described_and_deleted(client: Any) -> None:
    """The directory, one object's place, and its tombstone's epoch."""
    client.post("/v1/shop/objects/Probe/lot-1/put", json=[1])
    client.post("/v1/shop/objects/Other/lot-2/put", json=[1])

    listed = client.get("/v1/shop/objects", params={"class": "Probe", "prefix": "lot"}).json()
    assert [entry["name"] for entry in listed["objects"]] == ["lot-1"]
    assert client.get("/v1/shop/objects/Probe/lot-1").json()["node"] == "n1"
    assert (
        client.delete("/v1/shop/objects/Probe/lot-1", headers={"If-Match": "5.5"}).json()["code"] == "stale_incarnation"
    )
    deleted = client.delete("/v1/shop/objects/Probe/lot-1")
    assert (deleted.json(), deleted.headers["Domicile-Epoch"]) == ({"epoch": "1.9"}, "1.9")
    assert client.get("/v1/shop/objects/Probe/lot-1").json()["code"] == "no_such_object"


@pytest.mark.parametrize(
    "query", ["class=a-b", "prefix=a&prefix=b", "limit=5", "prefix=%FF", "&".join(["token=a"] * 30)]
)
def test_a_query_that_cannot_be_meant_is_refused(client: Any, query: str) -> None:
    """Unknown, repeated and undecodable parameters are named, not ignored."""
    assert client.get(f"/v1/shop/objects?{query}").status_code == 400


def test_projects_are_put_and_got(client: Any) -> None:
    """PUT creates with a policy; GET gives it; what is unknown is 404."""
    assert client.get("/v1/projects/newone").json()["code"] == "no_such_project"
    assert client.put("/v1/projects/newone", json={"region": "eu-west", "on_incident": "wait"}).status_code == 200
    assert client.put("/v1/projects/other", content=b"").json()["region"] == "local"
    assert client.put("/v1/projects/newone", json={"on_incident": "maybe"}).status_code == 400
    assert [row["id"] for row in client.get("/v1/projects").json()["projects"]] == ["newone", "other"]
    got = client.get("/v1/projects/newone").json()
    assert (got["id"], got["region"], got["on_incident"]) == ("newone", "eu-west", "wait")


def test_work_of_a_region_that_does_not_exist_is_refused(client: Any) -> None:
    """Nobody would ever take it up, and nothing can go there. What is of a registered region goes on to Temporal, which
    this node has not; a name that is none, or no name, is refused as such."""
    at, drain, move = "/v1/control/operations", "/v1/nodes/n-0123456789abcdef/drain", "/v1/projects/acme/move"
    one = {"project": "acme", "cls": "Probe", "name": "x"}
    for region, status, said in (
        ("nowhere", 404, "there are far, local"),
        ("far", 400, "TEMPORAL"),
        ("No Region", 400, "not a region's name"),
        ("", 400, ""),
        (7, 400, ""),
    ):
        asked = [
            client.post(at, json={"workflow": "Scrub", "input": {"region": region}}),
            client.post(at, json={"workflow": "MoveObject", "input": {**one, "to": region}}),
            client.post(at, json={"workflow": "ReplicateProject", "input": {"project": "acme", "to": region}}),
            client.post(move, json={"to": region}),
        ]
        if region:
            asked.append(client.post(drain, json={"region": region}))
        for answer in asked:
            assert (answer.status_code, said in answer.json()["detail"]) == (status, True), answer.json()


def test_health_readiness_and_the_rest(http: Any, client: Any, monkeypatch: Any) -> None:
    """A live node that may not serve is healthy and not ready, and says when to ask again."""
    assert client.get("/healthz").status_code == 200
    assert client.get("/readyz").status_code == 200
    monkeypatch.setattr(http.front, "admitted", False)
    not_ready = client.get("/readyz")
    assert (not_ready.status_code, not_ready.json()["code"]) == (503, "not_serving")
    assert not_ready.headers["Retry-After"] == "1"
    assert client.get("/healthz").status_code == 200
    assert client.get("/metrics").text == "# metrics\n"
    assert client.get("/v1/cluster").json()["nodes"] == ["n1"]
    assert client.get("/v1/incidents").json() == {"incidents": []}
    assert client.get("/openapi.json").json() == DOCUMENT


@pytest.mark.parametrize(("path", "by_method"), RESOURCES, ids=[path for path, _ in RESOURCES])
def test_a_wrong_method_is_a_problem_with_allow(client: Any, path: str, by_method: dict[str, Any]) -> None:
    """405 on every resource, with the methods it has; HEAD is allowed where GET is, and has no body."""
    of_operations = {"node": "n-0123456789abcdef", "object_id": "0" * 64, "epoch": "1.2", "decision": "keep"}
    of_operations |= {"signal": "stop"}
    filled = path.format(project="acme", cls="Probe", name="x", method="get", id="move-acme", **of_operations)
    answer = client.request("PATCH", filled)

    assert (answer.status_code, answer.json()["code"]) == (405, "bad_request")
    assert set(answer.headers["Allow"].split(", ")) - {"HEAD"} == set(by_method)
    head = client.head(filled)
    assert head.content == b""
    assert (head.status_code == 405) == ("GET" not in by_method)


def test_an_unknown_path_is_a_problem(client: Any) -> None:
    """404, in the same shape as everything else."""
    answer = client.get("/v2/nothing")

    assert (answer.status_code, answer.json()["title"]) == (404, "Nothing is at this path")


def test_the_document_describes_every_route() -> None:
    """OpenAPI and the table of routes have the same paths and methods."""
    described = {path: {method.upper() for method in item} for path, item in DOCUMENT["paths"].items()}

    assert described == {path: set(by_method) for path, by_method in RESOURCES}
