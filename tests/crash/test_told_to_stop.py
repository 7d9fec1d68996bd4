"""SIGTERM under load: every request is answered in full, refused, or never read (field case 101)."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from crashkit.bucket import in_directory, restored
from crashkit.clients import Client, LostError, NotReachedError, Wish
from crashkit.oracle import check_cold, check_heard, check_live
from crashkit.process import NodeProcess, until
from simworld.history import History

CLIENTS = 40
STOP_SECS_MAX = 25.0
LINGER_SECS = 1.0


class Hurried(Client):
    """Sends back to back over one kept connection until that is over, and never twice."""

    over = ""

    def send_until_over(self, name: str) -> None:
        while not self.over:
            item = self._item()
            self.perform(Wish(name, "append", item, "append", (item, 0), keyed=False))

    def _send(self, wish: Wish, key: str | None):  # type: ignore[no-untyped-def]
        try:
            answer = super()._send(wish, key)
        except (NotReachedError, LostError) as error:
            self.over = type(error).__name__
            raise
        if answer.headers.get("connection") == "close":
            self.over = "said"
        return answer


@pytest.mark.parametrize("supervised", [False, True], ids=["alone", "supervised"])
def test_a_node_told_to_stop_leaves_nobody_in_doubt(supervised: bool, tmp_path: Path) -> None:
    """What ran was answered; what was answered is in the bucket; what was lost never ran; the node ends, with 0."""
    node, history = NodeProcess(tmp_path, {"OBJECT_IDLE_SECS": "60"}), History()
    node.start(supervised=supervised)
    node.wait_ready()
    clients = [Hurried(f"h{n}", node.port, history, patience_secs=0) for n in range(CLIENTS)]
    slow = Client("slow", node.port, history, patience_secs=0)
    threads = [
        threading.Thread(target=client.send_until_over, args=(f"stop-{n % 8}",)) for n, client in enumerate(clients)
    ]
    threads.append(threading.Thread(target=slow.linger, args=("slow", LINGER_SECS)))
    for thread in threads:
        thread.start()
    until(lambda: history.answered() > 10 * CLIENTS, "the clients are at it")
    began = time.monotonic()
    node.signal(signal.SIGTERM)
    assert node.wait_dead() == 0
    assert time.monotonic() - began < STOP_SECS_MAX
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    for client in (*clients, slow):
        client.line.close()
    cold = restored(in_directory(node.data / "blobs"))
    check_cold(history, cold)
    check_live(history)
    check_heard(history)
    there = {item for found in cold.values() for item in found.items}
    lost = [op.item for op in history.operations if op.outcome == "unknown"]
    assert not there.intersection(lost), "these ran, and nobody was told"
    assert slow.append  # its call outlived the signal:
    assert [op.outcome for op in history.operations if op.client == "slow"] == ["answered"]
    ends = Counter(client.over for client in clients)
    assert ends["said"] >= CLIENTS // 2, f"most connections are told that they close: {json.dumps(ends)}"


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """Who cannot wait says so twice; what was answered is safe all the same."""
    node, history = NodeProcess(tmp_path), History()
    node.start()
    node.wait_ready()
    client = Client("c", node.port, history, patience_secs=0)
    for _ in range(5):
        assert client.append("x").outcome == "answered"
    linger = threading.Thread(target=client.linger, args=("x", 9.0))
    linger.start()
    until(lambda: len(history.operations) == 6 and _reads_busy(node), "the call runs")
    began = time.monotonic()
    node.signal(signal.SIGTERM)
    until(lambda: not node.is_ready(), "it heard the signal")
    node.signal(signal.SIGTERM)
    assert node.wait_dead() == 1
    assert time.monotonic() - began < 8.0, "it did not wait for the call"
    linger.join(30)
    client.line.close()
    check_cold(history, restored(in_directory(node.data / "blobs")))


def _reads_busy(node: NodeProcess) -> bool:
    return node.is_ready()
