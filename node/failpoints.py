"""Named places where a test may make the process die, fail or wait (TESTING 3).

`DOMICILE_FAILPOINTS=flight.before-manifest:kill,rotate.after-fold:error@3`: action `kill` (SIGKILL to this process),
or `error` (OSError), each from the n-th hit on (`@n`, the first by default; an error strikes once); told on stderr.
A place that is not armed costs a look-up in an empty dictionary.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

NAMES = frozenset(
    {
        "activation.after-claim",
        "activation.after-lay",
        "alarm.after-handler",
        "call.after-commit",
        "call.before-commit",
        "call.committed",
        "delete.after-row",
        "delete.after-tombstone",
        "delete.before-row",
        "delete.before-tombstone",
        "flight.after-manifest",
        "flight.after-segment",
        "flight.before-manifest",
        "flight.before-segment",
        "lay.after-base",
        "lay.after-birth",
        "lay.after-clear",
        "lay.after-cut",
        "lay.after-log",
        "lay.before-sidecar",
        "mirror.after-write",
        "mirror.before-write",
        "release.after-row",
        "release.before-row",
        "release.before-sidecar",
        "rotate.after-checkpoint",
        "rotate.after-chunk",
        "rotate.after-fold",
        "rotate.after-sidecar",
        "rotate.before-checkpoint",
        "rotate.before-manifest",
        "rotate.before-mark",
        "stop.after-release",
        "stop.before-leave",
        "takeover.after-fence",
        "takeover.before-fence",
    }
)
"""Every place there is; a test holds it against the code."""


class Failpoints:
    """The failpoints of one process, and what each does when it is hit."""

    def __init__(self, actions: Mapping[str, Callable[[], None]] | None = None) -> None:
        self._actions = dict(actions or {})

    @classmethod
    def parse(cls, text: str) -> Failpoints:
        """From the environment's text. Raises ValueError for a place or an action there is not."""
        actions = {}
        for item in filter(None, text.split(",")):
            name, _, action = item.strip().partition(":")
            action, _, count = action.partition("@")
            if name not in NAMES or action not in ("kill", "error"):
                raise ValueError(f"no failpoint {item!r}")
            actions[name] = _Armed(name, action, int(count or 1))
        return cls(actions)

    def hit(self, name: str) -> None:
        """Called where something may go wrong; does nothing unless a test armed `name`."""
        if self._actions and (action := self._actions.get(name)):
            action()


class _Armed:
    def __init__(self, name: str, action: str, count: int) -> None:
        self._name, self._action, self._left = name, action, count

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0 and self._action == "error":
            os.write(2, f"failpoint {self._name} error\n".encode())
            raise OSError(f"failpoint {self._name}")
        if self._left <= 0 and self._action == "kill":
            os.write(2, f"failpoint {self._name} kill\n".encode())  # the only trace: a test asks whether it was here
            os.kill(os.getpid(), signal.SIGKILL)


NONE = Failpoints()
