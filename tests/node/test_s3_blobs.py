"""S3's answers told apart, one by one, against a small server that says what the test wants."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from domicile.node.blobs.base import ABSENT, Precondition, UnfitStoreError
from domicile.node.blobs.probe import probe
from domicile.node.blobs.retries import Again, Retries
from domicile.node.blobs.s3 import S3Blobs, S3Config
from domicile.node.errors import BlobMissing, BlobUnavailable, PreconditionFailed

pytestmark = pytest.mark.filterwarnings(r"ignore:datetime\.datetime\.utcnow:DeprecationWarning:botocore")

T = TypeVar("T")


@dataclass(frozen=True)
class Say:
    """An answer instead of the usual one, before anything is stored, or (`stored`) after.

    Without a status the connection is cut; `hang`: nothing is ever said; `half`: the body stops in its middle.
    """

    status: int = 0
    code: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    stored: bool = False
    hang: bool = False
    half: bool = False


@dataclass
class Stub:
    """An S3 server of one bucket. `says` are the answers to the next requests, first to last; then it behaves."""

    says: deque[Say | None] = field(default_factory=deque)
    ignores: frozenset[str] = frozenset()
    values: dict[str, bytes] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                method, target, _ = line.decode().split()
                headers = {}
                while (text := (await reader.readline()).decode().strip()) != "":
                    name, _, value = text.partition(":")
                    headers[name.lower()] = value.strip()
                if headers.get("expect") == "100-continue":
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if not await self._answer(method, target, headers, body, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            writer.close()

    async def _answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the connection goes on."""
        self.seen.append(method)
        say = self.says.popleft() if self.says else None
        status, out, extra = self._behave(method, target, headers, body) if say is None or say.stored else (0, b"", {})
        if say is not None and say.hang:
            await asyncio.Event().wait()
        if say is not None and not say.half:
            if not say.status:
                return False
            status, extra = say.status, dict(say.headers)
            out = f"<Error><Code>{say.code}</Code><Message>m</Message></Error>".encode() if say.code else b""
        if say is not None and say.half:
            status, out, extra = self._behave(method, target, headers, body)
        head = {"Content-Length": str(len(out)), **extra}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        half = say is not None and say.half
        writer.write(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + (out[: len(out) // 2] if half else out))
        await writer.drain()
        return not half

    def _behave(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        url = urlsplit(target)
        key = unquote(url.path).removeprefix("/bucket").removeprefix("/")
        if not key:
            return 200, self._listing(parse_qs(url.query)), {}
        if method == "GET":
            if key not in self.values:
                return 404, b"<Error><Code>NoSuchKey</Code></Error>", {}
            return 200, self.values[key], {"ETag": tag_of(self.values[key])}
        if method == "DELETE":
            self.values.pop(key, None)
            return 204, b"", {}
        asked = {name: value for name, value in headers.items() if name not in self.ignores}
        if asked.get("if-none-match") == "*" and key in self.values:
            return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}
        if "if-match" in asked and key not in self.values:
            return 404, b"<Error><Code>NoSuchKey</Code></Error>", {}
        if "if-match" in asked and asked["if-match"].strip('"') != tag_of(self.values[key]).strip('"'):
            return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}
        self.values[key] = body
        return 200, b"", {"ETag": tag_of(body)}

    def _listing(self, query: dict[str, list[str]]) -> bytes:
        prefix, after = query.get("prefix", [""])[0], query.get("start-after", [""])[0]
        most = int(query["max-keys"][0])
        found = [key for key in sorted(self.values) if key.startswith(prefix) and key > after]
        rows = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(self.values[key])}</Size></Contents>" for key in found[:most]
        )
        return (
            f"<ListBucketResult><IsTruncated>{str(len(found) > most).lower()}</IsTruncated>{rows}</ListBucketResult>"
        ).encode()


def tag_of(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


class JumpingClock:
    """A clock that a wait moves on at once; `waits` are the waits asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 0

    async def sleep(self, secs: float) -> None:
        self.waits.append(secs)
        self.now += secs
        await asyncio.sleep(0)


def run(
    stub: Stub, scenario: Callable[[S3Blobs], Awaitable[T]], clock: JumpingClock | None = None, read_secs: float = 5.0
) -> T:
    async def whole() -> T:
        server = await asyncio.start_server(stub.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        config = S3Config(
            "bucket", "", f"http://127.0.0.1:{port}", access_key="k", secret_key="s", read_secs=read_secs, page_keys=3
        )
        blobs = await S3Blobs.open(config, Retries(clock or JumpingClock(), lambda: 0.5))
        try:
            return await scenario(blobs)
        finally:
            await blobs.close()
            server.close()
            await server.wait_closed()

    return asyncio.run(whole())


def put_after(stub: Stub, condition: Precondition, clock: JumpingClock | None = None, read_secs: float = 5.0) -> str:
    """One put on a connection that is already open, as it is in a running node."""

    async def scenario(blobs: S3Blobs) -> str:
        with pytest.raises(BlobMissing):
            await blobs.get("warm-up")
        stub.seen.clear()
        return await blobs.put("k", b"new", condition)

    stub.says.appendleft(None)
    return run(stub, scenario, clock, read_secs)


OLD = tag_of(b"old")


def holding_old(*says: Say) -> Stub:
    return Stub(deque(says), values={"k": b"old"})


def test_a_conflict_is_tried_again_until_it_is_stored() -> None:
    """Field case 23: 409 means a race and nothing stored: sent again, with growing waits, and stored."""
    clock = JumpingClock()
    stub = holding_old(Say(409, "ConditionalRequestConflict"), Say(409, "ConditionalRequestConflict"))
    assert put_after(stub, OLD, clock) == tag_of(b"new")
    assert (stub.values["k"], stub.seen) == (b"new", ["PUT"] * 3)
    assert clock.waits == [0.025, 0.05]


def test_a_conflict_that_never_ends_is_unavailable() -> None:
    """Endless 409 gives up within the time, and says that nothing was stored."""
    clock = JumpingClock()
    stub = holding_old(*[Say(409, "ConditionalRequestConflict")] * 1000)
    with pytest.raises(BlobUnavailable) as caught:
        put_after(stub, OLD, clock)
    assert not caught.value.maybe
    assert clock.now < 20


@pytest.mark.parametrize(
    ("say", "condition"),
    [
        (Say(412, "PreconditionFailed"), OLD),
        (Say(412, "PreconditionFailed"), ABSENT),
        (Say(404, "NoSuchKey"), OLD),
        (Say(404), OLD),
        (Say(304), ABSENT),
    ],
)
def test_answers_that_mean_the_condition_failed(say: Say, condition: Precondition) -> None:
    """Field case 23: 412, 404 to If-Match and 304 are PreconditionFailed, after one request."""
    stub = holding_old(say)
    with pytest.raises(PreconditionFailed):
        put_after(stub, condition)
    assert stub.seen == ["PUT"]
    assert stub.values["k"] == b"old"


def test_a_missing_bucket_is_no_failed_condition() -> None:
    """404 for the bucket itself is an operator's error, named."""
    with pytest.raises(BlobUnavailable, match="NoSuchBucket") as caught:
        put_after(holding_old(Say(404, "NoSuchBucket")), OLD)
    assert not caught.value.maybe


@pytest.mark.parametrize("status", [501])
def test_not_implemented_is_an_unfit_store(status: int) -> None:
    """501 says that the store does not know conditional puts."""
    with pytest.raises(UnfitStoreError, match="501"):
        put_after(holding_old(Say(status, "NotImplemented")), ABSENT)


@pytest.mark.parametrize(
    ("say", "maybe"),
    [
        (Say(503, "SlowDown", (("Retry-After", "7"),)), False),
        (Say(429, "TooManyRequests"), False),
        (Say(403, "AccessDenied"), False),
        (Say(500, "InternalError"), True),
        (Say(500, "InternalError", stored=True), True),
        (Say(502), True),
        (Say(503), True),
        (Say(504, stored=True), True),
        (Say(), True),
        (Say(stored=True), True),
    ],
)
@pytest.mark.parametrize("condition", [OLD, ABSENT])
def test_a_conditional_put_is_sent_once(say: Say, maybe: bool, condition: Precondition) -> None:
    """Refused, unanswered or cut on a kept-alive connection: one request; `maybe` tells whether it may be stored."""
    stub = holding_old(say)
    if condition is ABSENT:
        stub.values.clear()
    with pytest.raises(BlobUnavailable) as caught:
        put_after(stub, condition)
    assert caught.value.maybe == maybe
    assert stub.seen == ["PUT"]
    assert (stub.values.get("k") == b"new") == say.stored


@pytest.mark.parametrize("stored", [False, True])
def test_a_put_without_answer_may_have_happened(stored: bool) -> None:
    """A time-out is BlobUnavailable with `maybe`, after one request."""
    stub = holding_old(Say(hang=True, stored=stored))
    with pytest.raises(BlobUnavailable) as caught:
        put_after(stub, OLD, read_secs=0.1)
    assert caught.value.maybe
    assert stub.seen == ["PUT"]
    assert (stub.values["k"] == b"new") == stored


def test_a_lost_answer_is_found_by_reading_again() -> None:
    """After a put whose answer was lost, the value and its tag are there to be recognized."""
    stub = holding_old(None, Say(stored=True))

    async def scenario(blobs: S3Blobs) -> None:
        tag = (await blobs.get("k")).tag
        with pytest.raises(BlobUnavailable):
            await blobs.put("k", b"mine", tag)
        found = await blobs.get("k")
        assert found.data == b"mine"
        await blobs.put("k", b"next", found.tag)

    run(stub, scenario)
    assert stub.values["k"] == b"next"


@pytest.mark.parametrize(
    "says",
    [
        [Say(503, "SlowDown")] * 3,
        [Say(500, "InternalError")],
        [Say(), Say(stored=True)],
        [Say(429), Say(408, "RequestTimeout"), Say(409, "OperationAborted")],
    ],
)
def test_what_may_be_repeated_is(says: list[Say]) -> None:
    """Free puts, gets, lists and deletes outlive throttling, errors and cut connections."""
    for act in ("put", "get", "list", "delete"):
        stub = holding_old(*says)

        async def scenario(blobs: S3Blobs, act: str = act) -> None:
            if act == "put":
                assert await blobs.put("k", b"new") == tag_of(b"new")
            elif act == "get":
                assert (await blobs.get("k")).data == b"old"
            elif act == "list":
                assert [listed.key async for listed in blobs.list("")] == ["k"]
            else:
                await blobs.delete("k")

        clock = JumpingClock()
        run(stub, scenario, clock)
        assert len(stub.seen) == len(says) + 1
        assert len(clock.waits) == len(says)


def test_a_value_cut_in_its_middle_is_fetched_again() -> None:
    """Half a body is never taken for the value."""
    stub = Stub(deque([Say(half=True)]), values={"k": bytes(100_000)})

    async def scenario(blobs: S3Blobs) -> None:
        assert (await blobs.get("k")).data == bytes(100_000)

    run(stub, scenario)
    assert stub.seen == ["GET", "GET"]


def test_retry_after_is_honoured() -> None:
    """The store's own wait is kept where it is longer than ours; dates and nonsense are not waited for."""
    clock = JumpingClock()
    says = [
        Say(503, "SlowDown", (("Retry-After", text),)) for text in ("3", "soon", "-4", "Wed, 21 Oct 2015 07:28:00 GMT")
    ]
    run(holding_old(*says), lambda blobs: blobs.put("k", b"new"), clock)
    assert clock.waits == [3.0, 0.05, 0.1, 0.2]


def test_a_wait_beyond_the_time_ends_at_once() -> None:
    """A store that asks for more time than there is makes the request unavailable now, not later."""
    clock = JumpingClock()
    with pytest.raises(BlobUnavailable, match="SlowDown"):
        run(holding_old(Say(503, "SlowDown", (("Retry-After", "60"),))), lambda blobs: blobs.put("k", b"new"), clock)
    assert clock.waits == []


def test_refusals_are_not_repeated() -> None:
    """403 and their like will not get better: one request."""
    stub = holding_old(Say(403, "AccessDenied"))
    with pytest.raises(BlobUnavailable, match="AccessDenied"):
        run(stub, lambda blobs: blobs.get("k"))
    assert stub.seen == ["GET"]


def test_a_store_out_of_reach_is_unavailable() -> None:
    """Nobody listening: free puts try until their time is over; conditional ones say `maybe` at once."""

    async def scenario(blobs: S3Blobs) -> None:
        with pytest.raises(BlobUnavailable):
            await blobs.put("k", b"x")
        with pytest.raises(BlobUnavailable):
            await blobs.put("k", b"x", ABSENT)

    async def whole() -> None:
        server = await asyncio.start_server(Stub().serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        config = S3Config("bucket", "", f"http://127.0.0.1:{port}", access_key="k", secret_key="s")
        blobs = await S3Blobs.open(config, Retries(JumpingClock(), lambda: 0.5))
        try:
            await scenario(blobs)
        finally:
            await blobs.close()

    asyncio.run(whole())


def test_pages_follow_each_other_through_trouble() -> None:
    """A list of several pages, some of them throttled, has every key once, in order."""
    stub = Stub(values={f"o/{n:02}": b"x" * n for n in range(10)})
    stub.says = deque([None, Say(503, "SlowDown"), None, Say()])

    async def scenario(blobs: S3Blobs) -> list[tuple[str, int]]:
        return [(listed.key, listed.size) async for listed in blobs.list("o/")]

    assert run(stub, scenario) == [(f"o/{n:02}", n) for n in range(10)]


def test_waits_grow_to_a_ceiling() -> None:
    """Waits double, with jitter, up to the longest, and end with the time."""
    clock = JumpingClock()

    async def never() -> None:
        raise Again("busy")

    with pytest.raises(BlobUnavailable, match="busy"):
        asyncio.run(Retries(clock, lambda: 0.999, first=1.0, longest=4.0, total=20.0).run("k", never))
    assert clock.waits == pytest.approx([0.999, 1.998, 3.996, 3.996, 3.996, 3.996])


@pytest.mark.parametrize(
    ("stub", "says"),
    [
        (Stub(ignores=frozenset({"if-none-match"})), "ignores If-None-Match"),
        (Stub(ignores=frozenset({"if-match"})), "ignores If-Match"),
        (Stub(ignores=frozenset({"if-match", "if-none-match"})), "ignores If-None-Match"),
        (Stub(deque([Say(501, "NotImplemented")])), "501"),
        (Stub(deque([None, Say(501, "NotImplemented")])), "501"),
        (Stub(deque([Say(412, "PreconditionFailed")])), "refuses a put whose condition holds"),
    ],
)
def test_the_probe_refuses_an_unfit_store(stub: Stub, says: str) -> None:
    """Field case 22: ignored conditions and 501 stop the node at start, with what to do; nothing is left behind."""
    with pytest.raises(UnfitStoreError, match=says) as caught:
        run(stub, lambda blobs: probe(blobs, "probe/1"))
    assert "Use a store that honours If-Match and If-None-Match" in str(caught.value)
    assert stub.values == {}


def test_the_probe_accepts_a_fit_store_that_is_busy() -> None:
    """Conflicts and throttled reads are no reason to refuse a store."""
    stub = Stub(deque([Say(409, "ConditionalRequestConflict"), None, None, None, None, Say(503, "SlowDown")]))
    run(stub, lambda blobs: probe(blobs, "probe/1"))
    assert stub.values == {}
    assert stub.seen[-1] == "DELETE"


def test_the_probe_cannot_judge_a_store_that_is_away() -> None:
    """No answer is no verdict: BlobUnavailable, for the start to be tried again."""
    with pytest.raises(BlobUnavailable):
        run(Stub(deque([Say()])), lambda blobs: probe(blobs, "probe/1"))
