"""Files and syntax nodes of every room, which may fall and not rise.

Nodes are those of the syntax tree without docstrings, imports and contexts, so neither denser lines
nor fewer words of documentation make them fewer. ``FREEZE=1 pytest tests/test_size.py`` lowers the
table where a room fell. A room that has to rise is raised by hand, with a comment on its line that
names the capability that paid for it.
"""

from __future__ import annotations

import ast
import collections
import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Both counts by room.
SIZES = {
    "bench": (42, 28058),  # padder, break-even, a short support table
    "staticgraph": (5, 3527),  # declared classes, dense batches, old names that still work
    "staticgraph/atoms": (6, 4613),  # neighbours found in a step, ASE's calculator, streams
    "staticgraph/batches": (36, 19649),  # batches of anybody's loader, dense ones, min_fill
    "staticgraph/checking": (15, 13482),  # inputs changed in place, optimizer state
    "staticgraph/cli": (18, 13575),  # predict, try --submit
    "staticgraph/datasets": (10, 6988),  # a file that is only in a clone is said to be there
    "staticgraph/distributed": (5, 3362),  # ranks agree on a capacity
    "staticgraph/dryrun": (19, 12297),  # a line every two seconds
    "staticgraph/epochs": (9, 6136),  # torch's samplers
    "staticgraph/files": (12, 3051),
    "staticgraph/internals": (7, 1330),  # whether PyG is there
    "staticgraph/kernels": (95, 61467),
    "staticgraph/lightning": (4, 2375),  # own loaders
    "staticgraph/memory": (6, 4477),
    "staticgraph/models": (5, 1389),
    "staticgraph/nn": (45, 20766),  # radius_graph and knn_graph of fixed shape
    "staticgraph/outofcore": (29, 21291),  # annotated attributes
    "staticgraph/packing": (17, 14384),
    "staticgraph/plans": (14, 9930),  # plans for batches drawn at random
    "staticgraph/probing": (10, 6191),
    "staticgraph/recording": (14, 7976),  # annotated attributes
    "staticgraph/rewrites": (46, 34697),  # an error names its rewrite
    "staticgraph/runner": (22, 16458),  # verify compares optimizer state
    "staticgraph/serving": (17, 10376),  # connections that end
    "staticgraph/sizes": (6, 2759),  # attention by seed vectors, needed without PyG
    "staticgraph/steps": (37, 17854),  # batches in parts, added buckets, typed options
    "staticgraph/store": (27, 25388),  # clusters of as many as edges
    "staticgraph/text": (6, 1849),
    "staticgraph/training": (18, 17699),  # predict, ticks with room
    "tests": (257, 242002),  # the optimizer's state, inputs and replays of every fuzzed run
    "tests/support": (83, 40743),  # saved formats; options as cyclopts reads them
}
DOCUMENTED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


def nodes_of(source: str) -> int:
    """Number of syntax nodes that compute something."""
    count = 0
    for node in ast.walk(ast.parse(source)):
        count += not isinstance(node, ast.Import | ast.ImportFrom | ast.alias | ast.expr_context)
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            count -= 2
    return count


def room_of(path: Path) -> str:
    """A folder of the library, ``tests/support``, or one of the other top-level folders."""
    top, *inner = path.relative_to(ROOT).parts
    if top == "tests":
        return "tests/support" if inner[0] == "support" else top
    return f"{top}/{inner[0]}" if top == "staticgraph" and len(inner) > 1 else top


def sizes() -> dict[str, tuple[int, int]]:
    """Files and nodes by room."""
    rooms: dict[str, list[int]] = collections.defaultdict(list)
    for top in ("staticgraph", "tests", "bench"):
        for path in (ROOT / top).rglob("*.py"):
            rooms[room_of(path)].append(nodes_of(path.read_text()))
    return {room: (len(nodes), sum(nodes)) for room, nodes in sorted(rooms.items())}


def lower_table(present: dict[str, tuple[int, int]]) -> None:
    """Writes smaller numbers into the table of this file, and leaves out rooms that are gone."""
    lines = []
    for line in Path(__file__).read_text().splitlines(keepends=True):
        if row := re.match(r'    "([\w/]+)": \((\d+), (\d+)\),', line):
            if row[1] not in present:
                continue
            files, nodes = map(min, present[row[1]], (int(row[2]), int(row[3])))
            line = f'    "{row[1]}": ({files}, {nodes}),' + line[row.end() :]
        lines.append(line)
    Path(__file__).write_text("".join(lines))


def test_no_room_grows():
    present = sizes()
    if os.environ.get("FREEZE"):
        lower_table(present)
    grown = [
        f"{room}: {what} were {before}, are {now}; take out as much as came in, or raise the line "
        "in tests/test_size.py with a comment that names the capability that paid for it"
        for room, counts in present.items()
        for what, before, now in zip(
            ("files", "nodes"), SIZES.get(room, (0, 0)), counts, strict=True
        )
        if now > before
    ]
    assert grown == []
