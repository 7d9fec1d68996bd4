"""What the clients try again, what they do not, and what comes out."""

import asyncio

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domicile import Call, Client, Object, SyncClient, errors
from domicile.requests import Reply, error_of
from domicile.retries import Backoff, Pause, Send, exchange
from domicile.surface import place


def problem(cls, status=None, headers=(), **more):
    members = {
        "title": cls.title,
        "status": cls.status,
        "detail": f"because {cls.code}",
        "code": cls.code,
        "retryable": cls.retryable,
        "outcome": cls.outcome,
        **more,
    }
    return (status or cls.status, members, *headers)


@pytest.fixture
def bid(virtual, answers):
    """Calls `bid("ada", 25)` through the blocking client against scripted answers; gives result and requests."""

    def call(*script, options=None, **given):
        transport, seen = answers(*script)
        with SyncClient("http://node", transport=transport, system=virtual.system, **given) as client:
            lot = client.project("acme").object("Auction", "lot-42")
            return (lot.options(**options) if options else lot).bid("ada", 25), seen

    return call


def test_a_call(bid):
    """A call is one POST with JSON arguments, a deadline and a key; the JSON answer is the result."""
    result, [request] = bid((200, {"ok": True}), token="t0ken")

    assert result == {"ok": True}
    assert (request.method, request.url.raw_path) == ("POST", b"/v1/acme/objects/Auction/lot-42/bid")
    assert request.content == b'["ada",25]'
    assert request.headers["content-type"] == "application/json"
    assert request.headers["authorization"] == "Bearer t0ken"
    assert request.headers["idempotency-key"] == "key-1"
    assert request.headers["domicile-timeout-ms"] == "30000"


RETRIED = [errors.Moving, errors.NotServing, errors.NotHome, errors.Overloaded, errors.OutcomeUnknown]


@pytest.mark.parametrize("cls", RETRIED)
def test_retryable_refusals_are_retried_under_the_same_key(bid, virtual, cls):
    """What the node calls retryable is tried again with the same idempotency key and what is left of the time."""
    result, seen = bid(problem(cls), problem(cls), (200, 1))

    assert result == 1
    assert [request.headers["idempotency-key"] for request in seen] == ["key-1"] * 3
    timeouts = [int(request.headers["domicile-timeout-ms"]) for request in seen]
    assert timeouts[0] == 30_000
    assert timeouts == sorted(timeouts, reverse=True)
    assert len(set(timeouts)) == 3


NOT_RETRIED = [cls for code, cls in errors.BY_CODE.items() if cls not in RETRIED]


@pytest.mark.parametrize("cls", NOT_RETRIED)
def test_other_errors_are_raised_at_once(bid, virtual, cls):
    """Every other code of the contract is raised as its own type, at once, with what the document says."""
    with pytest.raises(cls) as caught:
        bid(problem(cls, type="urn:x", chain=["a"]))

    assert type(caught.value) is cls
    assert (caught.value.detail, caught.value.outcome) == (f"because {cls.code}", cls.outcome)
    assert caught.value.extra == {"chain": ["a"]}
    assert virtual.pauses == []


@pytest.mark.parametrize(
    ("lost", "sent"),
    [
        (httpx.ConnectError("refused"), False),
        (httpx.ConnectTimeout("slow"), False),
        (httpx.ReadError("reset"), True),
        (httpx.ReadTimeout("slow"), True),
        (httpx.RemoteProtocolError("closed"), True),
        (httpx.WriteError("reset"), True),
        (httpx.DecodingError("gzip"), True),
    ],
)
def test_lost_connections_become_typed(bid, virtual, lost, sent):
    """A lost connection is retried; when the time is up it is outcome_unknown if the request may have arrived."""
    assert bid(lost, (200, 7))[0] == 7

    with pytest.raises(errors.OutcomeUnknown if sent else errors.NotServing) as caught:
        bid(lost)

    assert caught.value.outcome == ("unknown" if sent else "not_run")
    assert type(lost).__name__ in caught.value.detail
    assert virtual.now <= 100 + 2 * 31


def test_a_later_refusal_does_not_take_an_unknown_outcome_back(bid):
    """If an earlier attempt may have written, a later attempt's refusal is outcome_unknown, with the key to go on."""
    with pytest.raises(errors.OutcomeUnknown) as caught:
        bid(httpx.ReadError("reset"), problem(errors.Unauthorized))

    assert isinstance(caught.value.__cause__, errors.Unauthorized)
    assert caught.value.extra == {"key": "key-1"}
    with pytest.raises(errors.MethodFailed):
        bid(httpx.ReadError("reset"), problem(errors.MethodFailed))


def test_retry_after_is_honoured(bid, virtual):
    """The node's fraction of a second, or else the header's whole ones, is the least pause."""
    bid(
        problem(errors.Moving, retry_after=0.25, headers=[("Retry-After", "1")]),
        problem(errors.NotServing, headers=[("Retry-After", "3")]),
        problem(errors.NotServing, headers=[("Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT")]),
        (200, 1),
    )

    assert virtual.pauses == pytest.approx([0.25 + 0.05, 3 + 0.1, 0.2])


def test_the_deadline_bounds_everything(bid, virtual):
    """No attempt starts past the deadline: a Retry-After that leads beyond it raises at once."""
    with pytest.raises(errors.Overloaded):
        bid(problem(errors.Overloaded, headers=[("Retry-After", "60")]))
    assert virtual.pauses == []

    with pytest.raises(errors.Overloaded):
        bid(problem(errors.Overloaded, retry_after=0.1), timeout_secs=2.0)
    assert sum(virtual.pauses) < 2.0
    assert len(virtual.pauses) > 3


@pytest.mark.parametrize(
    ("answer", "error", "attempts"),
    [
        ((502, "<html>"), errors.OutcomeUnknown, 2),
        ((503, None), errors.OutcomeUnknown, 2),
        ((504, {"message": "gateway"}), errors.OutcomeUnknown, 2),
        ((429, {}), errors.Overloaded, 2),
        ((404, "nothing here"), errors.DomicileError, 1),
        ((301, None), errors.DomicileError, 1),
        ((500, []), errors.DomicileError, 1),
    ],
)
def test_answers_of_something_in_between(virtual, answers, answer, error, attempts):
    """An answer that is no problem document is judged by its status: a proxy's 50x may hide a write."""
    transport, seen = answers(answer)
    with SyncClient("http://node", transport=transport, system=virtual.system, timeout_secs=0.06) as client:
        lot = client.project("acme").object("Auction", "lot-42")
        with pytest.raises(errors.DomicileError) as caught:
            lot.bid()

    assert type(caught.value) is error
    assert len(seen) == attempts


def test_an_answer_that_is_no_json(virtual):
    """A 2xx without JSON is an error with an unknown outcome, not a result."""
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=b"<html>"))
    with (
        SyncClient("http://node", transport=transport, system=virtual.system) as client,
        pytest.raises(errors.DomicileError, match="cannot be read") as caught,
    ):
        client.project("acme").object("Auction", "lot-42").bid()

    assert caught.value.outcome == "unknown"


def test_a_code_of_a_newer_node():
    """A code not known here still says itself, and whether it may be retried."""
    error = error_of({"code": "new", "status": 418, "title": "New", "retryable": True, "outcome": "not_run"})

    assert (error.code, error.status, error.retryable, error.outcome) == ("new", 418, True, "not_run")


def test_options(bid):
    """A caller's own key, deadline and incarnation go into the headers; other handles stay as they were."""
    _, [request] = bid((200, 1), options={"key": "mine", "timeout_secs": 1.5, "if_match": "1.7"})

    assert request.headers["idempotency-key"] == "mine"
    assert request.headers["domicile-timeout-ms"] == "1500"
    assert request.headers["if-match"] == '"1.7"'
    for bad in ("", "a\nb", "é", "x" * 256):
        with pytest.raises(errors.BadArguments):
            bid((200, 1), options={"key": bad})


def test_the_two_clients_do_the_same(virtual, answers):
    """The asynchronous client sends what the blocking one sends, pauses as long, and gives the same results."""
    script = [
        problem(errors.Moving),
        httpx.ReadError("reset"),
        (200, {"n": 1}),
        (200, {"epoch": "1.9"}),
        (200, {"r": 1}),
    ]

    def blocking():
        transport, seen = answers(*script)
        with SyncClient("http://node", transport=transport, system=virtual.system) as client:
            lot = client.project("acme").object("Auction", "lot-42")
            return [lot.bid("ada"), lot.delete(), lot.describe()], seen

    async def awaited():
        transport, seen = answers(*script)
        async with Client("http://node", transport=transport, system=virtual.system) as client:
            lot = client.project("acme").object("Auction", "lot-42")
            return [await lot.bid("ada"), await lot.delete(), await lot.describe()], seen

    first, first_seen = blocking()
    pauses, virtual.pauses, virtual.keys, virtual.now = virtual.pauses, [], 0, 100.0
    second, second_seen = asyncio.run(awaited())

    assert first == second == [{"n": 1}, "1.9", {"r": 1}]
    assert pauses == virtual.pauses

    def told(request):
        headers = {k: v for k, v in request.headers.items() if k.startswith(("idem", "domicile", "content-type"))}
        return request.method, str(request.url), request.content, headers

    assert [told(request) for request in first_seen] == [told(request) for request in second_seen]
    assert "idempotency-key" in first_seen[-2].headers
    assert "idempotency-key" not in first_seen[-1].headers


class Auction(Object):
    def bid(self, user: str, amount: int = 1) -> tuple[str, int]: ...


def test_a_class_at_hand_types_the_call(virtual, answers):
    """Given the class itself, arguments are bound before they leave and results are what the annotation says."""
    transport, seen = answers((200, ["ada", 2]))
    with SyncClient("http://node", transport=transport, system=virtual.system) as client:
        lot = client.project("acme").object(Auction, "lot-42")

        assert lot.bid("ada", amount=2) == ("ada", 2)
        with pytest.raises(errors.BadArguments):
            lot.bid()
        with pytest.raises(errors.NoSuchMethod):
            lot.sell()
    assert [request.content for request in seen] == [b'["ada",2]']


def test_database(virtual, answers):
    """Databases are spoken to by their own route, with SQL and parameters by name."""
    transport, seen = answers(
        (200, {"rows_changed": 1}), (200, [{"a": 1}]), (200, None), (200, [[], [{"b": {"$base64": "aGk="}}]])
    )
    with SyncClient("http://node", transport=transport, system=virtual.system) as client:
        catalog = client.project("acme").database("catalog")

        assert catalog.exec("INSERT INTO t VALUES (?)", [1]) == {"rows_changed": 1}
        assert catalog.read("SELECT a FROM t WHERE a = :a", {"a": 1}) == [{"a": 1}]
        assert catalog.read_one("SELECT 1") is None
        assert catalog.batch([("SELECT 1", None), ("SELECT ?", [b"hi"])]) == [[], [{"b": b"hi"}]]
        for bad in ("text", b"x", 5, {1, 2}):
            with pytest.raises(errors.BadArguments):
                catalog.query("SELECT 1", bad)

    assert [request.url.path for request in seen] == [
        f"/v1/acme/databases/catalog/{method}" for method in ("exec", "read", "read_one", "batch")
    ]
    assert seen[0].content == b'{"sql":"INSERT INTO t VALUES (?)","params":[1]}'
    assert seen[3].content == (
        b'{"statements":[{"sql":"SELECT 1","params":null},{"sql":"SELECT ?","params":[{"$base64":"aGk="}]}]}'
    )


def test_listing_goes_through_all_pages(virtual, answers):
    """The directory comes page by page, its filters and tokens percent-encoded."""
    line = {"class": "Auction", "name": "é/&", "id": "00", "created_ms": 5}
    script = [(200, {"objects": [line, line], "token": "a b&c"}), (200, {"objects": [line], "token": None})]

    async def awaited():
        transport, _ = answers(*script)
        async with Client("http://node", transport=transport, system=virtual.system) as client:
            return [info async for info in client.project("acme").objects("Auction")]

    transport, seen = answers(*script)
    with SyncClient("http://node", transport=transport, system=virtual.system) as client:
        found = list(client.project("acme").objects("Auction", prefix="é&"))

    assert [(info.cls, info.name, info.created_ms) for info in found] == [("Auction", "é/&", 5)] * 3
    assert asyncio.run(awaited()) == found
    assert seen[0].url.raw_path == b"/v1/acme/objects?class=Auction&prefix=%C3%A9%26"
    assert seen[1].url.raw_path == b"/v1/acme/objects?class=Auction&prefix=%C3%A9%26&token=a%20b%26c"


def test_batch(virtual, answers):
    """A batch keys every call, stays the same in every attempt, and gives failures as values in their places."""
    lines = [{"result": 1}, {"problem": problem(errors.MethodFailed)[1]}, {"result": None}]
    transport, seen = answers(httpx.ReadError("reset"), (200, lines))
    with SyncClient("http://node", transport=transport, system=virtual.system) as client:
        calls = [Call("A", "x", "m", (1,)), Call("A", "y", "m", {"a": 2}), Call("B", "z", "m", key="mine")]
        one, failed, none = client.project("acme").batch(calls)

        with pytest.raises(errors.BadArguments):
            client.project("acme").batch(calls * 34)

    assert (one, none) == (1, None)
    assert isinstance(failed, errors.MethodFailed)
    assert seen[0].content == seen[1].content
    assert seen[0].content == (
        b'[{"class":"A","name":"x","method":"m","args":[1],"key":"key-1"},'
        b'{"class":"A","name":"y","method":"m","args":{"a":2},"key":"key-2"},'
        b'{"class":"B","name":"z","method":"m","args":[],"key":"mine"}]'
    )


def test_projects(virtual, answers):
    """A project is created by PUT and read by GET."""
    transport, seen = answers((200, {"id": "acme"}))
    with SyncClient("http://node/base/", transport=transport, system=virtual.system) as client:
        client.project("acme").create(region="eu-west")
        client.project("acme").policy()

    assert [(request.method, request.url.path, request.content) for request in seen] == [
        ("PUT", "/base/v1/projects/acme", b'{"region":"eu-west"}'),
        ("GET", "/base/v1/projects/acme", b""),
    ]


@pytest.mark.parametrize("url", ["", "node:8080", "ftp://node", "http://", "http://[::1", 5])
def test_bad_urls(url):
    """An address that is none is refused before any call."""
    with pytest.raises(errors.BadArguments):
        SyncClient(url)


def test_bad_token():
    """A token that is no header is refused before any call."""
    with pytest.raises(errors.BadArguments):
        SyncClient(token="a\nb")


outcomes = st.sampled_from(
    [
        (503, "not_serving", True, "not_run"),
        (504, "outcome_unknown", True, "unknown"),
        (422, "method_failed", False, "ran"),
        (401, "unauthorized", False, "not_run"),
        (200, "", False, ""),
    ]
)


@given(st.lists(outcomes, min_size=1, max_size=30), st.floats(0.1, 30), st.floats(0, 0.999))
def test_any_run_of_answers(script, timeout_secs, luck):
    """Whatever the answers: one key, no pause past the deadline, an end at the first final one, an honest outcome."""
    ended, given_answers, pauses = carry_out(script, timeout_secs, luck)

    last = given_answers[-1]
    assert pauses == len(given_answers) - 1
    if isinstance(ended, errors.DomicileError):
        assert ended.outcome == ("unknown" if "unknown" in given_answers and last == "not_run" else last)
    else:
        assert (ended, last) == (1, "")


def carry_out(script, timeout_secs, luck):
    """The result or the error of an exchange, the outcomes answered, and how often it paused."""
    now, told, given_answers, pauses = [0.0], None, [], 0
    request = place("acme", "Auction", "x", lambda: "key").call("bid", (), {})
    steps = exchange(request, timeout_secs, lambda: now[0], lambda: luck, Backoff())
    try:
        while True:
            step = steps.send(told)
            told = None
            if isinstance(step, Pause):
                pauses += 1
                now[0] += step.secs
                assert now[0] < timeout_secs
            else:
                assert isinstance(step, Send)
                assert step.request.key == "key"
                status, code, retryable, outcome = script[min(len(given_answers), len(script) - 1)]
                given_answers.append(outcome)
                body = f'{{"code":"{code}","retryable":{str(retryable).lower()},"outcome":"{outcome}"}}'
                told = Reply(status, {}, b"1" if status == 200 else body.encode())
    except StopIteration as end:
        return end.value, given_answers, pauses
    except errors.DomicileError as error:
        return error, given_answers, pauses
