"""What `import domicile` offers, and what it does not cost."""

import subprocess
import sys

import pytest

import domicile
from domicile.errors import BY_CODE

PUBLIC = [
    "Alarm",
    "Call",
    "Client",
    "Database",
    "DomicileError",
    "Object",
    "Region",
    "SyncClient",
    "cron",
    "errors",
    "read",
]


def test_the_public_names():
    """These names and no others, each of them there, even after every module has been imported."""
    assert sorted(domicile.__all__) == sorted(dir(domicile)) == sorted(PUBLIC)
    assert all(getattr(domicile, name) is not None for name in PUBLIC)
    assert callable(domicile.read)
    assert callable(domicile.cron)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = domicile.nothing


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import domicile", ("httpx", "msgspec", "asyncio", "domicile.object")),
        ("from domicile import Object, Region, read, cron, Database, errors", ("httpx", "ssl", "domicile.client")),
        ("from domicile import Client, SyncClient; import domicile.registry", ("apsw", "starlette", "domicile.node")),
        ("import domicile.registry, domicile.client", ("domicile.placement", "domicile.cli", "temporalio", "blake3")),
    ],
)
def test_imports_stay_small(program, absent):
    """Objects do without the HTTP client, and nothing of the SDK imports a server package."""
    check = f"{program}\nimport sys\nprint([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-I", "-c", check], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_codes_of_the_contract():
    """The codes and statuses of the HTTP surface, as clients know them."""
    assert {code: (cls.status, cls.retryable, cls.outcome) for code, cls in BY_CODE.items()} == {
        "bad_request": (400, False, "not_run"),
        "bad_name": (400, False, "not_run"),
        "bad_arguments": (422, False, "not_run"),
        "body_too_large": (413, False, "not_run"),
        "unauthorized": (401, False, "not_run"),
        "forbidden": (403, False, "not_run"),
        "no_such_project": (404, False, "not_run"),
        "no_such_class": (404, False, "not_run"),
        "no_such_method": (404, False, "not_run"),
        "no_such_object": (404, False, "not_run"),
        "call_cycle": (409, False, "not_run"),
        "chain_too_deep": (409, False, "not_run"),
        "stale_incarnation": (409, False, "not_run"),
        "key_reused": (422, False, "not_run"),
        "moving": (503, True, "not_run"),
        "not_serving": (503, True, "not_run"),
        "not_home": (503, True, "not_run"),
        "overloaded": (503, True, "not_run"),
        "method_failed": (422, False, "ran"),
        "sql_refused": (422, False, "ran"),
        "sql_error": (422, False, "ran"),
        "database_full": (507, False, "ran"),
        "call_timeout": (504, False, "ran"),
        "outcome_unknown": (504, True, "unknown"),
    }
