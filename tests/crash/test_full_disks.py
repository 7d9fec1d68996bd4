"""A disk runs full, the directory store's or the node's own: clear errors, and it goes on by itself."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from crashkit.bucket import in_directory
from crashkit.campaign import Campaign
from crashkit.clients import LARGE, SEGMENT, Client, progress
from crashkit.process import until
from crashkit.tmpfs import mounted, needs_root

pytestmark = pytest.mark.timeout(180)
GATE_MS = 500
SOON_SECS = 15.0  # the gate and whatever a busy machine adds; what hangs, hangs until the client gives up


@needs_root
def test_a_full_directory_store_holds_writes_and_lets_reads_go(tmp_path: Path) -> None:
    """Reads answer, writes are unknown after the gate, nothing hangs; with space again all of it lands by itself."""
    store = tmp_path / "store"
    with mounted(store, 8) as disk:
        settings = {"DOMICILE_BLOBS": f"file:{store}", "OBJECT_ACK_GATE_MS": str(GATE_MS), "OBJECT_IDLE_SECS": "60"}
        campaign = Campaign(tmp_path / "node", settings=settings, bucket=in_directory(store), clients=0)
        try:
            campaign.node.start()
            campaign.node.wait_ready()
            client = Client("one", campaign.node.port, campaign.history)
            for name in ("quiet", "busy"):
                assert client.append(name, LARGE).outcome == "answered"
            disk.fill()
            lost = []
            for _ in range(4):
                began = time.monotonic()
                lost.append(client.append("busy", LARGE, keyed=False))
                assert time.monotonic() - began < SOON_SECS
            assert [op.attempts[-1].code for op in lost] == ["outcome_unknown"] * 4
            assert client.read("quiet").attempts[-1].outcome == "answered"
            disk.free()
            read = client.read("busy")
            assert read.shown is not None
            assert {op.item for op in lost} <= set(read.shown.items)
            client.line.close()
            campaign.conclude()
        finally:
            campaign.abandon()


@needs_root
def test_a_full_data_directory_refuses_clearly_and_recovers(tmp_path: Path) -> None:
    """No room for logs, sidecars or the placement store: every call gets an answer, and all is well with room again."""
    data, store = tmp_path / "node" / "data", tmp_path / "store"
    with mounted(data, 24) as disk:
        settings = {"DOMICILE_BLOBS": f"file:{store}", "OBJECT_ACK_GATE_MS": "2000", "DOMICILE_PROFILE": "fast"}
        campaign = Campaign(tmp_path / "node", settings=settings, bucket=in_directory(store), clients=3)
        try:
            campaign.node.start(supervised=True)
            campaign.node.wait_ready()
            progress(campaign.history, 40, until)
            disk.fill()
            bold = Client("bold", campaign.node.port, campaign.history, patience_secs=0)
            said: Counter[str] = Counter()
            for n in range(30):
                said[bold.append(f"bold-{n % 3}", SEGMENT, keyed=False).attempts[-1].code] += 1
            bold.line.close()
            campaign.load.era += 1
            disk.free()
            until(campaign.node.is_ready, "it serves again")
            progress(campaign.history, 40, until)
            campaign.conclude()
        finally:
            campaign.abandon()
        assert said.total() > said[""], f"nothing was refused: {said}"
        codes = {"", "not_serving", "outcome_unknown", "database_full", "sql_error", "not_reached"}
        strange = {code for code in said if code not in codes and "Error" not in code and "Disconnected" not in code}
        assert not strange, said


def test_a_placement_store_that_broke_is_opened_anew(tmp_path: Path) -> None:
    """After a failed commit the embedded store cannot tell what it holds: the process is replaced, and serves."""
    campaign = Campaign(tmp_path, settings={"DOMICILE_PROFILE": "fast"}, clients=2)
    try:
        campaign.node.start(supervised=True)
        campaign.node.wait_ready()
        progress(campaign.history, 20, until)
        first = campaign.node.serving_pid()
        campaign.node.refuse_writes(True)
        until(lambda: campaign.node.serving_pid() not in (first, campaign.node.pid), "the process is replaced")
        until(campaign.node.is_ready, "the next one serves")
        progress(campaign.history, 20, until)
        campaign.conclude()
    finally:
        campaign.abandon()
