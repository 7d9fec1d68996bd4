"""`python bench/run.py`, from anywhere: the same as `python -m bench` from the repository's root."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from bench.command import main

    sys.exit(main())
