"""Make the kit of the drills, and the history and checker of the simulation, importable by the tests beside it."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "sim"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
