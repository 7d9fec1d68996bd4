"""Whether processes live."""

from __future__ import annotations

from pathlib import Path


def alive(pid: int) -> bool:
    """Whether a process runs; the dead that nobody reaped do not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
