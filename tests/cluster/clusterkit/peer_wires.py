"""An etcd cluster whose first member can be cut from the others and go on as the leader it was.

Until it has missed its followers for an election timeout it knows of nothing, and answers keepalives from memory. So
that drills have time, its timeout is long and the others' short; the leadership is handed to it.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from etcd_servers import Etcd, Member, until

from clusterkit.wires import Wire

DEAF_MS = 40_000
GRANT_SECS = 60


class DeposableEtcd(Etcd):
    """Three members. `depose` and `heal` as often as you like; in the end `stop`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 3, ("--heartbeat-interval", "100"))
        self._wires = [Wire(_address(member.peer), self._speakers) for member in self.members]
        for member, wire in zip(self.members, self._wires, strict=True):
            timeout = DEAF_MS if member is self.members[0] else 800
            member.flags = (*member.flags, "--election-timeout", str(timeout))
            member.advertised = f"http://127.0.0.1:{wire.port}"
        self._grant = ""

    @property
    def old(self) -> Member:
        """The leader of before."""
        return self.members[0]

    def start(self) -> None:
        super().start()
        self.lead(self.old)
        self._grant = self.old.post("/v3/lease/grant", {"TTL": GRANT_SECS})["ID"]

    def depose(self) -> None:
        """Cut the leader from its followers; when this returns they have another, and it does not know."""
        self.lead(self.old)
        self._wires[0].down()
        for wire in self._wires[1:]:
            wire.bar(self.old.name)
        until(self._led_by_another, why="nobody else leads")
        assert self.keeps_alive()

    def keeps_alive(self) -> bool:
        """Whether the old leader still prolongs grants, and cannot order a write."""
        kept = self.old.post("/v3/lease/keepalive", {"ID": self._grant})
        put = {"key": base64.b64encode(b"\0written").decode(), "value": ""}
        return int(kept.get("result", {}).get("TTL", 0)) > 0 and not self.old.post("/v3/kv/put", put, 0.3)

    def reunite(self) -> None:
        """Everybody hears everybody."""
        for wire in self._wires:
            wire.admit()
        if self._wires[0].is_down:
            self._wires[0].up()
        until(self.healthy, why="etcd did not heal")

    def stop(self) -> None:
        super().stop()
        for wire in self._wires:
            wire.close()

    def _led_by_another(self) -> bool:
        told: list[dict[str, Any]] = [member.post("/v3/maintenance/status") for member in self.members[1:]]
        old = self.old.post("/v3/maintenance/status")["header"]["member_id"]
        return all(status.get("leader", "0") not in ("0", old) for status in told)

    def _speakers(self) -> dict[str, int]:
        return {member.name: member.pid for member in self.members if member.process is not None}


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)
