"""Names in URLs (field case 103), over a real connection: what the client writes and what a server reads."""

import http.server
import threading
from urllib.parse import unquote

import hard_names
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domicile import SyncClient
from domicile.errors import BadName
from domicile.requests import path, segment

NAMES = [
    *hard_names.NAMES,
    "...",
    "/",
    "//",
    "a..b",
    "~",
    "\\",
    "&=",
    "a\nb",
    "\x7f",
    "..%2F..",
    "*",
    "'\"",
    "ﬁ",
    "名前",
]


@pytest.fixture
def raw_server():
    """A server on a free port that answers every POST with its path as it came, byte for byte."""

    class Echo(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16

        def do_POST(self):
            raw = self.requestline.split(" ")[1]
            self.rfile.read(int(self.headers.get("content-length", 0)))
            body = f'"{raw}"'.encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_every_name_is_its_own_path_on_the_wire(raw_server):
    """Each name arrives as one segment that decodes, once, to exactly that name; no two names share a path."""
    paths = []
    with SyncClient(raw_server) as client:
        for name in NAMES:
            paths.append(client.project("acme").object("Auction", name).bid())

    assert len(set(paths)) == len(NAMES)
    for name, raw in zip(NAMES, paths, strict=True):
        _, v1, project, kind, cls, encoded, method = raw.split("/")
        assert (v1, project, kind, cls, method) == ("v1", "acme", "objects", "Auction", "bid")
        assert unquote(encoded, errors="strict") == name


@given(st.text(min_size=1, max_size=40).filter(lambda s: s.isprintable() or "\n" in s))
def test_segments_lead_back(name):
    """Any Unicode text becomes one plain ASCII segment that is no step in the tree, and back."""
    encoded = segment(name)

    assert unquote(encoded, errors="strict") == name
    assert encoded.isascii()
    assert not set(encoded) & set("/?#;+ \\\n&=")
    assert encoded not in (".", "..")


def test_golden_paths():
    """The encoding is fixed: the same name has the same path for ever."""
    assert path("acme", "objects", "Auction", "a/b c.d", "bid") == "/v1/acme/objects/Auction/a%2Fb%20c.d/bid"
    assert path("acme", "objects", "Auction", "..") == "/v1/acme/objects/Auction/%2E%2E"
    assert path("é") == "/v1/%C3%A9"


@pytest.mark.parametrize("name", ["", "\ud800", 5, None])
def test_what_is_no_name(name):
    """A name that can be no segment is refused where it is given."""
    with SyncClient("http://node") as client:
        with pytest.raises(BadName):
            client.project("acme").object("Auction", name)
        with pytest.raises(BadName):
            client.project(name)
