"""One copy held still for a reader: base and log up to a length stay what they are until it is closed (section 8)."""

from __future__ import annotations

from collections.abc import Callable

from domicile.node.replica.copies import Copy, CopyFiles
from domicile.node.sqlite.birth import IMAGE
from domicile.placement.records import Position


class CopyView:
    """Made by `Replicas.copy`. `position` is at whole commits; a read may be at any commit below it.

    `base` is the path of the base, or the bytes of the birth image. Folds and swaps wait until it is closed;
    `on_interrupt` is called when one has waited for a second.
    """

    def __init__(self, files: CopyFiles, copy: Copy) -> None:
        state = copy.state
        assert state is not None
        held, position = state.held, state.position
        assert held is not None
        assert position is not None
        self._files = files
        self._copy = copy
        self._held = held
        self.position: Position = position
        self.start = held.start
        self.base: str | bytes = files.path(copy.object_id, held.base.file) if held.base.file else IMAGE
        self.on_interrupt: Callable[[], None] = lambda: None
        copy.views.add(self)

    def checksum(self, length: int) -> bytes:
        """The checksum at a length not above the position's. Raises OSError."""
        return self._copy.digest(length)

    def log(self, length: int) -> bytes:
        """The log's first bytes. Raises OSError."""
        return self._files.read_log(self._copy.object_id, self._held, 0, length)

    def interrupt(self) -> None:
        self.on_interrupt()

    def close(self) -> None:
        """No harm in doing it twice."""
        copy = self._copy
        copy.views.discard(self)
        if not copy.views and copy.views_gone is not None and not copy.views_gone.done():
            copy.views_gone.set_result(None)
