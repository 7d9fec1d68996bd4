"""`doctor` sees what would keep a node from running well, and says what to do about each."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from domicile.cli import doctor, doctor_servers
from domicile.node.config import Config

Run = Callable[..., "subprocess.CompletedProcess[str]"]
MOUNTS = """\
/dev/vda / ext4 rw,relatime 0 0
tmpfs /run tmpfs rw 0 0
filer:/export /mnt/shared\\040data nfs4 rw 0 0
"""


def test_a_good_machine_passes(domicile: Run, tmp_path: Path, free_port: int) -> None:
    """Every check is made, none is broken, and the data directory has nothing left in it but its stores."""
    looked = domicile("doctor", "--json", DOMICILE_DATA="data", DOMICILE_LISTEN=f"127.0.0.1:{free_port}")
    findings = {finding["check"]: finding for finding in json.loads(looked.stdout)}
    assert looked.returncode == 0, looked.stdout
    assert list(findings) == [
        *("SQLite", "data directory", "file system", "disk space", "blob store", "clock", "open files", "HTTP address")
    ]
    assert not [finding for finding in findings.values() if finding["state"] == "broken"]
    assert not (tmp_path / "data/.doctor").exists()


def test_a_data_directory_that_cannot_be_made_is_broken(domicile: Run, tmp_path: Path, free_port: int) -> None:
    """Exit code 1, the check by name, and what to do."""
    (tmp_path / "file").write_text("in the way")
    looked = domicile("doctor", DOMICILE_DATA="file/data", DOMICILE_LISTEN=f"127.0.0.1:{free_port}")
    assert looked.returncode == 1
    assert "BROKEN" in looked.stdout
    assert "-> give DATA" in looked.stdout
    assert "data directory" in looked.stderr


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/srv/data", "ext4"), ("/run/x", "tmpfs"), ("/running", "ext4"), ("/mnt/shared data/d", "nfs4"), ("/", "ext4")],
)
def test_the_file_system_is_the_longest_mount_above(path: str, kind: str) -> None:
    """A path's file system is that of the nearest mount point above it, spaces in its name included."""
    assert doctor.mounted_as(Path(path), MOUNTS) == kind


def test_the_nearest_existing_folder_is_found(tmp_path: Path) -> None:
    """A data directory that is yet to be made is judged by where it will be."""
    assert doctor.existing(tmp_path / "a/b/c") == tmp_path.resolve()


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()[1]


def test_a_taken_address_is_noticed(taken: int) -> None:
    """An address somebody listens on is a warning: it may be the node itself."""
    finding = doctor.port(f"127.0.0.1:{taken}")
    assert finding.state == "warning"
    assert "LISTEN" in finding.fix


def test_too_few_open_files_are_noticed() -> None:
    """The limit is held against the objects that may be awake, and the fix names the number needed."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        pytest.skip("no limit here")
    finding = doctor.open_files(Config(object_residents=soft))
    assert finding.state == "warning"
    assert f"ulimit -n {soft * doctor.FILES_FOR_AN_OBJECT + doctor.FILES_FOR_THE_REST}" in finding.fix
    assert doctor.open_files(Config(object_residents=1)).state == ("ok" if soft >= 1027 else "warning")


def test_servers_that_a_node_goes_by_are_asked(etcd: Any, free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An etcd that takes writes is well, and has nothing of the question left in it; one that does not answer is
    broken; a Temporal that does not answer is a warning, since objects are served without it."""
    monkeypatch.setattr(doctor_servers, "ANSWER_SECS", 1.0)
    here, nowhere = f"etcd://{etcd.endpoints[0].removeprefix('http://')}", f"127.0.0.1:{free_port}"
    config = Config(placement=here, control=f"etcd://{nowhere}", temporal=nowhere)
    findings = {finding.check: finding for finding in doctor_servers.servers(config)}
    assert {name: finding.state for name, finding in findings.items()} == {
        "placement store": "ok",
        "control keyspace": "broken",
        "Temporal": "warning",
    }
    assert "CONTROL" in findings["control keyspace"].fix
    assert list(doctor_servers.servers(Config())) == []


def test_a_blob_store_that_does_not_answer_is_broken(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that cannot be reached is told before a node is started against it."""
    monkeypatch.setattr(doctor, "PROBE_SECS", 0.3)
    config = Config(
        blobs="s3://bucket/prefix",
        blobs_endpoint=f"http://127.0.0.1:{free_port}",
        blobs_access_key_id="x",
        blobs_secret_access_key="y",
    )
    finding = doctor.blob_store(config, tmp_path)
    assert finding.state == "broken"
