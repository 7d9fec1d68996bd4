"""One node that dies again and again under one load of clients who ride through, and is looked into each time."""

from __future__ import annotations

import signal
from pathlib import Path

from simworld.history import History

from crashkit.bucket import OpenBlobs, in_directory, restored
from crashkit.clients import Client, Load, progress
from crashkit.oracle import check_cold, check_heard, check_live
from crashkit.process import NodeProcess, until

PROGRESS = 25


class Campaign:
    """`node` and its `load`; between two steps the node is down and nothing in its directory changes."""

    def __init__(
        self,
        where: Path,
        *,
        settings: dict[str, str] | None = None,
        bucket: OpenBlobs | None = None,
        clients: int = 4,
        seed: int = 1,
    ) -> None:
        self.node = NodeProcess(where, settings)
        self._bucket = bucket or in_directory(self.node.data / "blobs")
        self.history = History()
        self.load = Load(self.node.port, self.history, clients=clients, seed=seed).start()

    def die_at(self, name: str, *, supervised: bool, wiped: bool) -> None:
        """Start the node, let it die at the failpoint `name`, go on, die again; then look into the bucket alone.

        A supervisor starts the next child by itself and dies with it in the end. `wiped`: the node's own copies are
        lost as well before the next start.
        """
        self.load.era += 1
        if self.node.process is None:
            self.crash()  # so that there is something to take over
        if name.startswith("lay."):
            self.node.wipe()  # so that objects are laid from the bucket
        self.node.start(f"{name}:kill", supervised=supervised)
        if name.startswith("stop."):
            until(lambda: self.node.is_ready(), "the node is ready")
            progress(self.history, PROGRESS, until)
            self.node.signal(signal.SIGTERM)
        until(lambda: f"failpoint {name} kill" in self.node.said(), f"the node comes to {name}")
        if supervised and not name.startswith("stop."):
            until(self.node.is_ready, "the supervisor started the next child")
            progress(self.history, PROGRESS, until)
            self.node.kill()
        self.node.wait_dead()
        self.check()
        if wiped:
            self.node.wipe()

    def crash(self) -> None:
        """Serve for a moment and be killed in the middle of it."""
        self.node.start()
        self.node.wait_ready()
        progress(self.history, PROGRESS, until)
        self.node.kill()

    def strike(self, names: set[str]) -> set[str]:
        """Start the node with an error at each of `names`; gives those that came before it went on or was replaced."""
        self.load.era += 1
        self.node.start(",".join(f"{name}:error" for name in sorted(names)), supervised=True)

        def struck() -> set[str]:
            return {name for name in names if f"failpoint {name} error" in self.node.said()}

        until(lambda: struck() == names or "node.replace" in self.node.said(), f"errors at {names} strike")
        until(self.node.is_ready, "the node serves, or the one that replaced it")
        progress(self.history, 4 * PROGRESS, until)
        came = struck()
        self.node.kill()
        self.check()
        return came

    def check(self) -> None:
        """The node is down: the bucket alone holds all that was answered."""
        check_cold(self.history, restored(self._bucket))

    def conclude(self) -> None:
        """Serve in peace until every client has its answers and every alarm came, stop in order, look at all of it."""
        if self.node.process is None or self.node.process.poll() is not None:
            self.node.start()
        self.node.wait_ready()
        self.load.finish()
        reader = Client("reader", self.node.port, self.history)
        self._check_alarms(reader)
        last = {name: reader.read(name) for name in self.history.of_objects()}
        reader.line.close()
        assert self.node.stop() == 0
        self.check()
        cold = restored(self._bucket)
        for name, read in last.items():
            assert read.shown is not None, f"{name} could not be read: {read.attempts[-1]}"
            assert read.shown.items == (cold[name].items if name in cold else ()), f"{name}: the bucket differs"
        check_live(self.history)
        check_heard(self.history)

    def _check_alarms(self, reader: Client) -> None:
        """Every alarm that was answered comes, and leaves its mark once."""
        armed: dict[str, set[str]] = {}
        for operation in self.load.armed:
            if operation.outcome == "answered":
                armed.setdefault(operation.object, set()).add(operation.item)
        for name, items in armed.items():
            until(lambda name=name, items=items: items <= set(self._fired(reader, name)), f"alarms of {name} come")
            fired = self._fired(reader, name)
            assert len(fired) == len(set(fired)), f"{name}: an alarm left its mark twice"

    def _fired(self, reader: Client, name: str) -> list[str]:
        answer = reader.line.call(name, "fired")
        return list(answer.json()) if answer.status == 200 else []

    def abandon(self) -> None:
        """Whatever happened: nothing is left running."""
        self.load.over.set()
        self.node.kill()
