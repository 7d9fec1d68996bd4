"""The crash drills' clients with several nodes to choose from."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from crashkit.clients import Answered, Client, Line, Load, LostError, NotReachedError, Wish
from simworld.history import History


class RovingClient(Client):
    """Asks one node, and the next one when that is not there or gave no answer. `roam`: another one each time.

    A node that is `shunned` is nobody's next one: it stands still, and would be waited for in vain.
    """

    def __init__(
        self, name: str, ports: list[int], history: History, first: int = 0, patience_secs: float = 60.0
    ) -> None:
        super().__init__(name, ports[first], history, patience_secs)
        self._lines = [Line(port) for port in ports]
        self._at = first
        self.line = self._lines[first]
        self.roam = False
        self.shunned: set[int] = set()
        self._rng = random.Random(name)

    def at(self, node: int) -> RovingClient:
        """Ask this node from now on."""
        self._at = node
        self.line = self._lines[node]
        return self

    def close(self) -> None:
        for line in self._lines:
            line.close()

    def _send(self, wish: Wish, key: str | None) -> Answered:
        if self.roam:
            self.at(self._rng.randrange(len(self._lines)))
        try:
            answer = super()._send(wish, key)
        except (NotReachedError, LostError):
            self._next()
            raise
        if answer.status == 503:
            self._next()
        return answer

    def _next(self) -> None:
        count = len(self._lines)
        self.at(next(at % count for at in range(self._at + 1, self._at + 1 + count) if at % count not in self.shunned))


class RovingLoad(Load):
    """The crash drills' load, through all nodes."""

    def __init__(
        self,
        name: str,
        ports: list[int],
        history: History,
        *,
        clients: int = 4,
        seed: int = 1,
        think_secs: float = 0.02,
    ) -> None:
        super().__init__(ports[0], history, clients=0, seed=seed, think_secs=think_secs)
        self.clients = [RovingClient(f"{name}c{n}", ports, history, n % len(ports)) for n in range(clients)]
        for client in self.clients:
            client.roam = True
        self._threads = [
            threading.Thread(target=self._run, args=(client, random.Random(f"{seed}-{client.name}")))
            for client in self.clients
        ]

    def start(self) -> RovingLoad:
        super().start()
        return self

    def finish(self, secs: float = 180.0) -> None:
        super().finish(secs)
        for client in self.clients:
            client.close()


def in_parallel(clients: list[RovingClient], names: list[str], work: Callable[[RovingClient, str], object]) -> None:
    """The work for each name; each client does its share, one after the other."""

    def run(n: int) -> None:
        for name in names[n :: len(clients)]:
            work(clients[n], name)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
