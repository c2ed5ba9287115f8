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
    "bench": (29, 17935),  # the labels of Cornell5, which the library no longer makes up
    "staticgraph": (5, 3714),  # declared classes, their attributes, what no field can be
    "staticgraph/atoms": (6, 4990),  # neighbours found in a step, streams, searches fitted to data
    "staticgraph/batches": (29, 20310),  # fields that a forward writes to, PyG's Data.size
    "staticgraph/checking": (13, 15113),  # what differs in float32 alone, one rank that raises
    "staticgraph/cli": (15, 10701),  # memory and partitions of other data are refused
    "staticgraph/datasets": (10, 6466),  # convert refuses before it converts
    "staticgraph/distributed": (5, 2875),  # ranks agree on a capacity
    "staticgraph/dryrun": (15, 9639),  # torch's assembler, launches between two kinds
    "staticgraph/epochs": (7, 6137),  # torch's samplers, draws named, order kept over buckets
    "staticgraph/files": (12, 3228),  # what was written, for stores and large graphs alike
    "staticgraph/internals": (8, 1982),  # freed memory kept, sound loops of Inductor
    "staticgraph/kernels": (57, 46033),  # any message over any edges, oneDNN by widths
    "staticgraph/lightning": (4, 2093),  # own loaders, fits that go on, epochs of unlike length
    "staticgraph/memory": (5, 3598),  # models of other versions are refused
    "staticgraph/models": (5, 1413),  # typed graphs refused by name
    "staticgraph/nn": (43, 22016),  # norms with rows in the last dimension
    "staticgraph/outofcore": (24, 16798),  # annotated attributes, a bounded message
    "staticgraph/packing": (17, 12994),  # swaps around large graphs
    "staticgraph/plans": (13, 9826),  # a large graph among small ones, stores that are gone
    "staticgraph/probing": (8, 4587),  # what is held out is not fitted
    "staticgraph/recording": (11, 8714),  # the optimizer's moved in, e3nn beside a model
    "staticgraph/rewrites": (41, 32811),  # any message over any edges, edges of each layer
    "staticgraph/runner": (19, 16604),  # losses that differentiate, memory kept, warm-ups anew
    "staticgraph/serving": (10, 8234),  # connections that end, what is no runner
    "staticgraph/sizes": (6, 2909),  # graphs of one size, paths in a trace, pairs of further rows
    "staticgraph/steps": (29, 20355),  # losses that differentiate, who raises in a trace, e3nn
    "staticgraph/store": (23, 21279),  # unknown devices named, strings that a part lacks
    "staticgraph/text": (6, 1714),  # work that is waited for and not shown, short values
    "staticgraph/training": (15, 14402),  # legends in their places
    "tests": (247, 212626),  # one test per mended fault, cases that are always kept
    "tests/support": (79, 41972),  # drawn programs, labels for commands on nodes
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
