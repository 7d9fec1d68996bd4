"""What `up` starts for operations: an own Temporal, the user's, or none where there is no program for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from domicile.cli import local_operations, local_temporal
from domicile.cli.local_operations import LocalOperations
from domicile.cli.local_ports import Ports
from domicile.cli.output import Output


def test_without_the_program_it_goes_on_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cluster runs without operations, and the person learns what to install."""
    monkeypatch.setattr(local_operations, "program", lambda: None)
    operations = LocalOperations(tmp_path, {}, Ports(), {})
    operations.begin()
    operations.start({}, lambda: False)
    assert operations.ready()
    assert operations.settings == {}
    assert operations.document() == {"control": None, "temporal": None}
    operations.tell(Output(as_json=False))
    assert "pip install 'domicile[local]'" in capsys.readouterr().out
    operations.stop()


def test_the_users_own_temporal_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the environment names one, none is started, with or without the program."""
    monkeypatch.setattr(local_operations, "program", lambda: None)
    operations = LocalOperations(tmp_path, {}, Ports(), {"DOMICILE_TEMPORAL": "temporal.internal:7233"})
    assert operations.settings == {"DOMICILE_TEMPORAL": "temporal.internal:7233"}
    assert operations.document()["temporal"] == {"address": "temporal.internal:7233", "ui": None, "pid": None}


def test_nothing_is_started_where_none_is_wanted(tmp_path: Path) -> None:
    """`up --no-control` is neither a mistake nor a lack."""
    operations = LocalOperations(tmp_path, {}, Ports(), {}, wanted=False)
    assert (operations.there, operations.missing, operations.settings) == (False, False, {})


def test_the_program_is_found_beside_python() -> None:
    """The wheel installs it there, whether or not that folder is on the path."""
    found = local_temporal.program()
    assert found is not None
    assert Path(found).name == "temporal"


def test_ports_are_none_that_an_outgoing_connection_may_take() -> None:
    """Each is given once, and a server that is started again on its own finds it free."""
    ports = Ports()
    given = [ports.take() for _ in range(50)]
    assert len(set(given)) == len(given)
    first_outgoing, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert max(given) < int(first_outgoing)
    assert ports.take(given[0]) not in given
