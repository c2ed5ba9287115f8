"""Makes the drawings of the documents from the data in the repository.

    python -m docs.tools.draw            # writes docs/drawings/*.svg
    python -m docs.tools.draw --check    # exit status 1 if a file differs from its drawing

Each drawing has its own file here and shows the library's own plans and batches; no number in it is
written by hand. ``make site`` compares the files with the output of this script.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from docs.tools.house import house
from docs.tools.recordings import recordings
from docs.tools.sizes import sizes
from docs.tools.slot import slot
from docs.tools.svg import Drawing
from docs.tools.swaps import swaps

FOLDER = Path(__file__).parents[1] / "drawings"
# The largest difference between a number in a file and the one that would be written.
TOLERANCE = 0.51

DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "sizes": sizes,
    "slot": slot,
    "swaps": swaps,
    "recordings": recordings,
    "house": house,
}
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def alike(one: str, other: str) -> bool:
    """Returns whether two files have the same words, and numbers within :data:`TOLERANCE`."""
    if NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(abs(float(a) - float(b)) <= TOLERANCE for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="some of them; all where none is named")
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args()
    check, names = options.check, options.names or list(DRAWINGS)
    stale = []
    for name in names:
        path, made = FOLDER / f"{name}.svg", DRAWINGS[name]().written()
        if not path.exists() or not alike(path.read_text(), made):
            stale.append(name)
            if not check:
                path.write_text(made)
    if check and stale:
        sys.exit(f"not as they would be written: {', '.join(stale)}; python -m docs.tools.draw")
    print(", ".join(stale) + " written" if stale else "all as they would be written")


if __name__ == "__main__":
    main()
