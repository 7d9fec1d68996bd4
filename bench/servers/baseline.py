"""The service one would write by hand: one process, one SQLite file, every increment synced before it is answered."""

import os

import apsw
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

PIECE_KIB = 1000

db = apsw.Connection(os.environ["BASELINE_FILE"])
db.execute("PRAGMA journal_mode=WAL")
db.execute("PRAGMA synchronous=FULL")
db.execute("CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, n INTEGER NOT NULL) WITHOUT ROWID")
db.execute("CREATE TABLE IF NOT EXISTS ballast (piece BLOB NOT NULL)")


async def increment(request: Request) -> JSONResponse:
    sql = "INSERT INTO counters VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET n = n + 1 RETURNING n"
    return JSONResponse(db.execute(sql, (request.path_params["name"],)).fetchall()[0][0])


async def read(request: Request) -> JSONResponse:
    row = db.execute("SELECT n FROM counters WHERE name = ?", (request.path_params["name"],)).fetchone()
    return JSONResponse(row[0] if row else 0)


async def fill(request: Request) -> JSONResponse:
    (kib,) = await request.json()
    for at in range(0, kib, PIECE_KIB):
        db.execute("INSERT INTO ballast VALUES (?)", (os.urandom(1024 * min(PIECE_KIB, kib - at)),))
    return JSONResponse(kib)


app = Starlette(
    routes=[
        Route("/{name}/increment", increment, methods=["POST"]),
        Route("/{name}/read", read, methods=["POST"]),
        Route("/{name}/fill", fill, methods=["POST"]),
    ]
)
