"""Make the world importable by the tests beside it."""

import sys
from pathlib import Path

if (here := str(Path(__file__).parent)) not in sys.path:
    sys.path.insert(0, here)
