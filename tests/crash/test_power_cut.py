"""The machine went down: files of another boot are proved by their hashes before use (PROTOCOLS section 5)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest
from crashkit.bucket import in_directory, restored
from crashkit.clients import SEGMENT, Client
from crashkit.oracle import check_cold, check_heard, check_live
from crashkit.process import NodeProcess
from simworld.history import History

from domicile.node import sidecar as sidecars

OBJECTS = [f"x{n}" for n in range(6)]
Damage = Callable[[Path], None]


def leave(_: Path) -> None:
    """Everything had reached the disk."""


def rot(folder: Path) -> None:
    """A page of the base never reached the disk: zeros stand there."""
    with (folder / "db").open("r+b") as base:
        base.seek(8192)
        base.write(bytes(4096))


def cut(folder: Path) -> None:
    """The log's last part never reached the disk."""
    log = folder / "db-wal"
    if log.exists():
        with log.open("r+b") as file:
            file.truncate(log.stat().st_size // 2)


def empty(folder: Path) -> None:
    """Nothing of the base reached the disk but its name."""
    (folder / "db").write_bytes(b"")


def another_boot(node: NodeProcess, damage: Damage) -> int:
    """Every copy is of an earlier boot; gives how many of them were caught in a rotation, and are no candidates now."""
    folders, rotating = sorted((node.data / "objects").glob("*/*")), 0
    assert len(folders) == len(OBJECTS)
    for folder in folders:
        sidecar = sidecars.decode((folder / "sidecar").read_bytes())
        assert sidecar is not None
        rotating += isinstance(sidecar.state, sidecars.Rotating)
        earlier = msgspec.structs.replace(sidecar, boot_id="an earlier boot")
        (folder / "sidecar").write_bytes(sidecars.encode(earlier))
        damage(folder)
    return rotating


def activations(node: NodeProcess) -> dict[str, int]:
    """How many objects were laid from what."""
    with urlopen(f"http://127.0.0.1:{node.port}/metrics") as answer:
        text = answer.read().decode()
    return {m[1]: int(float(m[2])) for m in re.finditer(r'domicile_activations_total\{from="(\w+)"\} (\S+)', text)}


@pytest.mark.parametrize("damage", [leave, rot, cut, empty])
@pytest.mark.parametrize("released", [False, True], ids=["crashed", "released"])
def test_files_of_another_boot_are_proved_before_use(damage: Damage, released: bool, tmp_path: Path) -> None:
    """Whole copies are used without the bucket, damaged ones never: what was answered is shown either way."""
    node, history = NodeProcess(tmp_path, {"OBJECT_IDLE_SECS": "60"}), History()
    client = Client("c", node.port, history)
    try:
        node.start()
        node.wait_ready()
        for n, name in enumerate(OBJECTS):
            for _ in range(4 + 4 * n):  # some of them rotate, some do not
                client.append(name, SEGMENT)
        if released:
            assert node.stop() == 0
        else:
            node.kill()
        rotating = another_boot(node, damage)
        node.start()
        node.wait_ready()
        for name in OBJECTS:
            assert client.read(name).outcome == "answered"
            client.append(name)
        laid = activations(node)
        if damage is leave:
            assert laid.get("store", 0) <= rotating, f"whole copies were not used: {laid}"
        if damage in (rot, empty):
            assert laid.get("store", 0) == len(OBJECTS), f"damaged copies were used: {laid}"
        assert node.stop() == 0
        check_cold(history, restored(in_directory(node.data / "blobs")))
        check_live(history)
        check_heard(history)
    finally:
        client.line.close()
        node.kill()
