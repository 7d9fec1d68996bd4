"""Where peers are installed and the servers' data lives."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """`DOMICILE_BENCH_CACHE` or ~/.cache/domicile-bench."""
    path = Path(os.environ.get("DOMICILE_BENCH_CACHE") or "~/.cache/domicile-bench").expanduser().resolve()
    path.mkdir(parents=True, exist_ok=True)
    return path
