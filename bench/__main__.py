"""`python -m bench`, from the repository's root."""

import sys

from bench.command import main

if __name__ == "__main__":
    sys.exit(main())
