"""Free ports of this machine's loopback."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
# Below those that the kernel gives to outgoing connections: whoever is killed finds its port free when it comes back.
ANY = range(12_000, 21_000)


class Ports:
    """Hands out each port once; one that is taken is replaced by any free one, unless it is `fixed`."""

    def __init__(self) -> None:
        self._given: set[int] = set()

    def take(self, wanted: int = 0) -> int:
        """`wanted` if nobody listens there, else any free one."""
        found = self.fixed(wanted) if wanted else None
        if found is None:
            found = next(filter(None, map(self.fixed, random.sample(ANY, len(ANY)))), None)
        while found is None:
            found = self.fixed(0)
        return found

    def fixed(self, port: int) -> int | None:
        """Just this port (0: whichever the machine gives); None when it is taken or was given before."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                return None
            number: int = probe.getsockname()[1]
        if number in self._given:
            return None
        self._given.add(number)
        return number
