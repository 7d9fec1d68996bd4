"""What a replica's disk is asked for when many objects are written at once, as strace sees it."""

from __future__ import annotations

import http.client
import re
import shutil
import subprocess
import threading
from collections import Counter
from pathlib import Path

import pytest
from clusterkit.cluster import Cluster, Node
from crashkit.clients import Line
from crashkit.process import until

OBJECTS = 200
IN_A_BATCH = 100  # calls of one request
AT_LEAST = 5  # objects in a sync, on the average: far below what is seen, far above one
SYNCS = "fsync,fdatasync,sync_file_range,msync,syncfs,pwritev2"
CALL = re.compile(r"^\d+ +(\w+)\((.*)", re.MULTILINE)
PASSES = re.compile(r"^domicile_replica_sync_seconds_count(?:\{\})? (\S+)$", re.MULTILINE)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace counts")
def test_a_replica_syncs_once_for_all_that_came_together(cluster: Cluster, tmp_path: Path) -> None:
    """200 objects of one home are written at once. Each of their replicas syncs once for a batch, as often as it says
    itself, with many objects in each; folding the journal in the background adds a few."""
    names, home, member = [cluster.fresh(f"many-{n}") for n in range(OBJECTS)], cluster.nodes[0], cluster.nodes[1]
    for item in ("first", "second"):
        _write(home, names, item)
    until(lambda: all(_in_step(home, name) for name in names), "all copies are in step")
    trace, before = tmp_path / "trace", _passes(member)
    with subprocess.Popen(
        ["strace", "-f", "-q", "-o", str(trace), "-e", f"trace={SYNCS}", "-p", str(member.serving_pid())]
    ) as tracer:
        try:
            until(lambda: tracer.poll() is not None or member.is_traced(), "strace has attached")
            assert tracer.poll() is None, "strace may not trace"
            _write(home, names, "third")
            until(lambda: all(_in_step(home, name) for name in names), "all copies have it")
        finally:
            tracer.terminate()
    seen, passes = _syncs(trace.read_text()), _passes(member) - before
    print(f"\n{OBJECTS} objects written at once: a replica made {passes} sync passes, {dict(seen)} by strace")
    assert 0 < passes <= seen["pwritev2"]
    assert seen.total() <= OBJECTS / AT_LEAST


def _write(home: Node, names: list[str], item: str) -> None:
    """One append to each, through the home, in requests that are under way together."""
    said: list[str] = []

    def ask(some: list[str]) -> None:
        line = Line(home.port)
        calls = [{"class": "Probe", "name": name, "method": "append", "args": [item]} for name in some]
        said.extend(line.ask("POST", "/v1/drill/batch", calls).json())
        line.close()

    parts = [names[at : at + IN_A_BATCH] for at in range(0, len(names), IN_A_BATCH)]
    threads = [threading.Thread(target=ask, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == len(names)
    assert not [one for one in said if "result" not in one]


def _in_step(home: Node, name: str) -> bool:
    about = home.get(f"/v1/drill/objects/Probe/{name}")
    replicas = about[1]["replicas"] if about else []
    return len(replicas) == 2 and all(copy["lag"] == 0 for copy in replicas)


def _passes(node: Node) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=30)
    connection.request("GET", "/metrics")
    found = PASSES.search(connection.getresponse().read().decode())
    connection.close()
    assert found is not None
    return int(float(found[1]))


def _syncs(trace: str) -> Counter[str]:
    """By name; a pwritev2 counts when its flags make it one."""
    return Counter(name for name, rest in CALL.findall(trace) if name != "pwritev2" or "SYNC" in rest)
