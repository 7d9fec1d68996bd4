"""The clients against a real node that serves the auction example."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hard_names import NAMES
from ports import free_port

from domicile import Call, Client, SyncClient, errors
from domicile.retries import Backoff

APP = Path(__file__).resolve().parents[2] / "examples" / "auction.py"


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """The address of `domicile dev` on a free port; it is ready, and ends with the module."""
    port = free_port()
    data = tmp_path_factory.mktemp("node")
    command = [sys.executable, "-m", "domicile.cli.main", "dev", str(APP), "--port", str(port), "--data", str(data)]
    with (data / "out").open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            with SyncClient(f"http://127.0.0.1:{port}", backoff=Backoff(most_secs=0.1)) as client:
                client.project("ready").create()  # retried until the node answers
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


@pytest.fixture
def client(node):
    with SyncClient(node) as client:
        yield client


def test_calls_and_their_errors(client):
    """Results come back as JSON has them, refusals and failures as their types."""
    lot = client.project("demo").object("Auction", "lot-42")

    assert lot.bid("ada", 25) == {"ok": True, "high": 25}
    assert lot.bid(user="grace", amount=20) == {"ok": False, "high": 25}
    assert lot.state() == {"closed": False, "high": {"user": "ada", "amount": 25}, "bids": 1}
    with pytest.raises(errors.BadArguments, match=r"Expected `int`, got `str` - at `\$\[1\]`"):
        lot.bid("ada", "much")
    with pytest.raises(errors.NoSuchMethod):
        lot.sell()
    with pytest.raises(errors.NoSuchClass):
        client.project("demo").object("Auktion", "x").bid("ada", 1)
    with pytest.raises(errors.BadName):
        client.project("Not A Project").object("Auction", "x").bid("ada", 1)


def test_a_key_of_ones_own(client):
    """The same call under the same key gets the first answer; another one is refused."""
    lot = client.project("demo").object("Auction", "keyed").options(key="k-1")

    assert lot.bid("ada", 1) == lot.bid("ada", 1) == {"ok": True, "high": 1}
    with pytest.raises(errors.KeyReused):
        lot.bid("ada", 2)


def test_every_name_is_its_own_object(client):
    """Each name of field case 103 is one object, by call, by listing and again by call; none is taken for another."""
    project = client.project("names")
    for number, name in enumerate(NAMES):
        project.object("Winnings", name).add(name, number)

    assert [project.object("Winnings", name).lots() for name in NAMES] == [{name: n} for n, name in enumerate(NAMES)]
    assert sorted(info.name for info in project.objects("Winnings")) == sorted(NAMES)
    assert [info.name for info in project.objects("Winnings", prefix="a%")] == ["a%252Fb", "a%2Fb"]
    for name in ("\0", "x" * 256):
        with pytest.raises(errors.BadName):
            project.object("Winnings", name).lots()


def test_database(client):
    """Rows and parameters, blobs among them, lead back to the same values."""
    database = client.project("demo").database("catalog")
    database.exec("CREATE TABLE t (id INTEGER PRIMARY KEY, v)")
    values = [None, 1, -(2**63), 1.5, "é\U0001f3e0", b"", b"\x00\xff"]

    for value in values:
        assert database.exec("INSERT INTO t (v) VALUES (?)", [value]) == {"rows_changed": 1}

    assert [row["v"] for row in database.read("SELECT v FROM t ORDER BY id")] == values
    assert database.read_one("SELECT v FROM t WHERE id = :id", {"id": 7}) == {"v": b"\x00\xff"}
    assert database.batch([("DELETE FROM t", None), ("SELECT count(*) AS n FROM t", [])]) == [[], [{"n": 0}]]
    with pytest.raises(errors.SqlError):
        database.query("SELEC")


def test_batch(client):
    """Calls of a batch each have their own answer or error."""
    one, failed, lots = client.project("demo").batch(
        [
            Call("Auction", "b", "bid", ("a", 1)),
            Call("Auction", "b", "bid", {"user": "b"}),
            Call("Winnings", "w", "lots"),
        ]
    )

    assert (one, lots) == ({"ok": True, "high": 1}, {})
    assert isinstance(failed, errors.BadArguments)


def test_deep_json_is_refused(node):
    """A body nested 100,000 deep is a refusal of the 400 class, and the node goes on (field case 100)."""
    import httpx

    answer = httpx.post(f"{node}/v1/demo/objects/Auction/deep/bid", content=b"[" * 100_000 + b"]" * 100_000)

    assert 400 <= answer.status_code < 500
    assert answer.json()["outcome"] == "not_run"


def test_many_at_once(node):
    """Fifty bids at once over one client: one at a time in the object, each with its own answer."""

    async def bids():
        async with Client(node) as client:
            lot = client.project("demo").object("Auction", "busy")
            return await asyncio.gather(*(lot.bid("ada", amount) for amount in range(1, 51)))

    answers = asyncio.run(bids())

    won = [answer["high"] for answer in answers if answer["ok"]]
    assert won == sorted(set(won))
    assert max(answer["high"] for answer in answers) == 50


def test_deletion(client):
    """Deleting gives the tombstone's epoch; what is not there cannot be deleted."""
    lot = client.project("demo").object("Auction", "gone")
    lot.bid("ada", 1)

    term, _, version = lot.delete().partition(".")

    assert term.isdigit()
    assert version.isdigit()
    assert lot.bid("ada", 1) == {"ok": True, "high": 1}
    with pytest.raises(errors.NoSuchObject):
        client.project("demo").object("Auction", "never-was").delete()
