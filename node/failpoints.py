"""Named places where a test may make the process die, fail or wait (TESTING 3).

`DOMICILE_FAILPOINTS=flight.before-manifest:kill,rotate.after-checkpoint:error@3` — action `kill`, `exit` (the child
ends orderly enough for its supervisor), `error` (OSError), each optionally at the n-th hit. Unset costs one
dictionary look-up.
"""

from __future__ import annotations

from collections.abc import Callable

NAMES: frozenset[str] = frozenset()


class Failpoints:
    """The failpoints of one process, and what each does when it is hit."""

    def __init__(self, actions: dict[str, Callable[[], None]] | None = None) -> None:
        self._actions = actions or {}

    def hit(self, name: str) -> None:
        """Called where something may go wrong; does nothing unless a test armed `name`."""
        if self._actions and (action := self._actions.get(name)):
            action()


NONE = Failpoints()
