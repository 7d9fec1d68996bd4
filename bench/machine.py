"""What the numbers were measured on."""

import os
import platform
import subprocess
from pathlib import Path

_IN_MEMORY = {"tmpfs", "ramfs"}


def describe(data: Path) -> dict[str, str]:
    filesystem, device = _mounted_at(data)
    facts = {
        "processor": f"{os.cpu_count()} cores, {_field('/proc/cpuinfo', 'model name')}",
        "memory": f"{int(_field('/proc/meminfo', 'MemTotal').split()[0]) // 1024 // 1024} GiB",
        "kernel": platform.release(),
        "disk": f"{filesystem} on {device}{_write_cache(device)}",
        "python": platform.python_version(),
        "gcc": _first_line("gcc", "--version"),
        "commit": _first_line("git", "-C", str(Path(__file__).parent), "log", "-1", "--format=%h %cs"),
    }
    if filesystem in _IN_MEMORY:
        facts["warning"] = "the data is in memory, where a sync costs nothing: set DOMICILE_BENCH_CACHE to a disk"
    return facts


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return line.split(":", 1)[1].strip()
    return "unknown"


def _mounted_at(path: Path) -> tuple[str, str]:
    """File system and device of the longest mount point above a path."""
    mounts = [line.split()[:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    above = [(point, kind, device) for device, point, kind in mounts if path.is_relative_to(point)]
    _, kind, device = max(above, key=lambda mount: len(mount[0]))
    return kind, device


def _write_cache(device: str) -> str:
    name = Path(device).resolve().name
    for holder in (name, name.rstrip("0123456789"), name.rsplit("p", 1)[0]):
        setting = Path(f"/sys/block/{holder}/queue/write_cache")
        if setting.exists():
            return f", write cache: {setting.read_text().strip()}"
    return ""


def _first_line(*command: str) -> str:
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return (said.splitlines() or ["unknown"])[0]
