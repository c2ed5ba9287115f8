"""``python -m staticgraph``, the same as ``staticgraph``."""

import sys

from staticgraph.cli import main

if __name__ == "__main__":
    sys.exit(main())
