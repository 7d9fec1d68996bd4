"""Notes with no server-side code of one's own: a page that speaks SQL to a `Database`, one for each notebook.

domicile dev examples/notes.py
python examples/notes.py            # the page on http://localhost:8000, talking to http://localhost:8080

The same by curl (a blob travels as {"$base64": "..."}):
curl -X POST localhost:8080/v1/demo/databases/notes/exec \
     -d '{"sql": "CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL)"}'
curl -X POST localhost:8080/v1/demo/databases/notes/exec \
     -d '{"sql": "INSERT INTO notes (text) VALUES (?)", "params": ["buy milk"]}'          # {"rows_changed":1}
curl -X POST localhost:8080/v1/demo/databases/notes/read -d '{"sql": "SELECT * FROM notes"}'

`Database` is the platform's and in every app; this module only has to exist. The page gives whoever opens it the whole
database: it shows the calls, not how to guard them.
"""

import html
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from domicile import SyncClient

SCHEMA = "CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL)"


class Page(BaseHTTPRequestHandler):
    """GET shows the notes, POST adds one."""

    client: SyncClient

    def do_GET(self) -> None:
        notes = self.client.project("demo").database("notes").read("SELECT text FROM notes ORDER BY id DESC")
        items = "".join(f"<li>{html.escape(note['text'])}</li>" for note in notes)
        form = '<form method="post"><input name="text" autofocus><button>Add</button></form>'
        self._answer(200, f"<!doctype html><title>Notes</title>{form}<ul>{items}</ul>")

    def do_POST(self) -> None:
        length = min(int(self.headers.get("Content-Length", 0)), 1 << 16)
        text = parse_qs(self.rfile.read(length).decode()).get("text", [""])[0]
        if text:
            self.client.project("demo").database("notes").exec("INSERT INTO notes (text) VALUES (?)", [text])
        self._answer(303, "")

    def _answer(self, status: int, body: str) -> None:
        payload = body.encode()
        self.send_response(status)
        self.send_header("Location", "/")
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


def main() -> None:
    with SyncClient(os.environ.get("DOMICILE_URL", "http://localhost:8080")) as client:
        client.project("demo").database("notes").exec(SCHEMA)
        Page.client = client
        ThreadingHTTPServer(("localhost", int(os.environ.get("PORT", "8000"))), Page).serve_forever()


if __name__ == "__main__":
    main()
