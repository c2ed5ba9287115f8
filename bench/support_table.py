"""Writes docs/reference/support.md: measures every layer in the table of the tests.

    python bench/support_table.py [--out docs/reference/support.md]

Each layer is part of the small model of tests/support/layer_model.py. Its row says how far the
padded model, with garbage of scale 1,000 in every padding row, is from plain PyG on the unpadded
batch in float64, and whether torch.compile would capture it as one graph of fixed shapes.
"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

import torch
import torch_geometric
import torch_geometric.nn as pyg

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.layer_cases import CASES, Case  # noqa: E402
from support.layer_model import model_of  # noqa: E402
from support.parity import BATCH, Result, call, plain_step, poisoned, static_step, unknown_counts  # noqa: E402

from bench.options import options_of  # noqa: E402
from staticgraph.nn.refused_layers import REFUSED_FUNCTIONS, REFUSED_LAYERS  # noqa: E402

# Layers of torch_geometric.nn that are not in the table, and why.
NOT_BUILT = {
    "SplineConv": "needs torch-spline-conv or pyg-lib, not on the package index for current torch",
    "FusedGATConv": "needs dgNN",
    "CuGraphSAGEConv": "needs cuGraph",
    "CuGraphGATConv": "needs cuGraph",
    "CuGraphRGCNConv": "needs cuGraph",
    "PANConv": "needs torch-sparse",
    "DimeNet": "needs torch-cluster and torch-sparse",
    "DimeNetPlusPlus": "makes its edges in forward: see [atoms](../atoms.md)",
    "GNNFF": "needs torch-cluster and torch-sparse",
    "ViSNet": "needs torch-cluster",
}

# Options that a layer refuses, with the reason and the remedy.
REFUSED_OPTIONS = {
    "aggregations over edges in a dense block (SAGEConv with 'lstm')": (
        "how many edges a node has is data",
        "aggr='mean', 'max', 'median', 'softmax'",
    ),
    "SuperGATConv in training without neg_edge_index": (
        "it draws negative edges",
        "pass neg_edge_index",
    ),
    "RGATConv within relations": ("it indexes edges with a mask", "'across-relation'"),
}

# Base classes, and indices, which are not layers.
NO_LAYER = {"MessagePassing", "Aggregation"}
NO_LAYER |= {"KNNIndex", "L2KNNIndex", "MIPSKNNIndex", "ApproxL2KNNIndex", "ApproxMIPSKNNIndex"}

# Models of torch_geometric.nn that are not for batches of many graphs, or not for a training step.
NOT_FOR_BATCHES = {
    "CorrectAndSmooth": "post-processing of one graph's predictions, without parameters",
    "LINKX": "one weight per node of one graph",
    "LightGCN": "one embedding per node of one graph",
    "LPFormer": "reads sparse matrices of one graph",
    "MetaPath2Vec": "random walks over one graph",
    "Node2Vec": "random walks over one graph",
    "RENet": "events of one temporal graph",
    "TGNMemory": "one memory per node of one temporal graph",
    "ARGA": "two optimizers in turn; its encoder is any model above",
    "ARGVA": "two optimizers in turn; its encoder is any model above",
    "VGAE": "as GAE, with noise; its encoder is any model above",
    "DeepGraphInfomax": "it permutes padding with nodes; its encoder is any model above",
    "GPSE": "its head reads node numbers on the host; its layers are linear and BatchNorm",
}


def main() -> None:
    """Measures all layers and writes the page."""
    out = options_of(__doc__, out=ROOT / "docs" / "reference" / "support.md").out
    torch.set_num_threads(1)
    rows = [(case, row(case)) for case in CASES]
    out.write_text("\n".join(page(rows)) + "\n")
    good = sum(cells[-1] for _, cells in rows)
    print(f"{out}: {good} of {len(rows)} pass")


def row(case: Case) -> tuple[str, str, str, bool]:
    """Measures one layer.

    Returns:
        The error of the outputs, that of gradients and buffers, how the layer is traced, and
        whether everything passes.
    """
    model = model_of(case)
    expected = plain_step(model, call, BATCH)
    batch = poisoned(BATCH, 1000.0)
    static, _ = static_step(model, call, batch)
    assert static is not None
    outputs, rest = (
        off(expected, static, ("out", "loss")),
        off(expected, static, ("grad", "buffer")),
    )
    traced, trace = static_step(model, call, unknown_counts(batch), trace=True)
    assert trace is not None
    if case.eager_only:
        graphs, same = f"refused: {case.eager_only}", True
    else:
        graphs = "yes" if trace.static else "no"
        same = traced is not None and (
            max(off(expected, traced, (kind,)) for kind in ("out", "loss", "grad", "buffer"))
            <= case.tolerance
        )
    fine = max(outputs, rest) <= case.tolerance and same and graphs != "no"
    return f"{outputs:.0e}", f"{rest:.0e}", graphs, fine


def off(expected: Result, actual: Result, kinds: tuple[str, ...]) -> float:
    """Returns the largest difference of these kinds, relative to the largest value of its kind."""
    worst = 0.0
    for name, value in expected.values.items():
        kind = name.split()[0]
        if kind in kinds and value.numel() and name in actual.values:
            scale = max(expected.largest(kind), 1e-30)
            worst = max(worst, float((value - actual.values[name]).abs().max()) / scale)
    return worst


def page(rows: list[tuple[Case, tuple[str, str, str, bool]]]) -> list[str]:
    """Returns the lines of the page."""
    convolutions = {
        c.name.split()[0].strip(",") for c, r in rows if c.kind == "convolutions" and r[-1]
    }
    convolutions &= set(pyg.conv.__all__)
    versions = f"torch {torch.__version__}, torch_geometric {torch_geometric.__version__}"
    lines = [
        "# Which PyG layers run in fixed shapes",
        "",
        f"Written by `bench/support_table.py`, {datetime.date.today().isoformat()}, {versions}, on "
        "a CPU.",
        "",
        "Each layer runs in training between a linear encoder and a sum over each graph. It passes "
        "if, with garbage of scale 1,000 in every padding row, outputs, gradients and running "
        "statistics are those of plain PyG on the same graphs without padding, in float64, and if "
        "torch.compile captures it as one graph without a size from data, with the same numbers. "
        "*Off* is the largest difference of a section, relative to the largest value.",
        "",
        f"{len(convolutions)} of PyG's convolutions pass.",
    ]
    for kind in dict.fromkeys(case.kind for case, _ in rows):
        cases = [(case, cells) for case, cells in rows if case.kind == kind]
        exact = [cells for case, cells in cases if case.tolerance <= 1e-6]
        outputs, rest = (max((cells[k] for cells in exact), key=float) for k in range(2))
        lines += ["", f"## {kind.capitalize()}", ""]
        lines += [f"Off by at most {outputs} in outputs, {rest} in gradients.", ""]
        passed = [case.name for case, cells in cases if cells[-1]]
        lines += [f"- pass: {'; '.join(passed)}"]
        for case, (_, _, graphs, fine) in cases:
            if not fine:
                lines.append(f"- **differs**: {case.name}")
            if case.tolerance > 1e-6:
                lines.append(f"- {case.name}: PyG computes it in float32")
            if graphs != "yes":
                lines.append(f"- {case.name}, one graph: {graphs}")
    lines += ["", "## Refused by name", "", "| instead | layers and functions |", "|---|---|"]
    refused = {**REFUSED_LAYERS, **REFUSED_FUNCTIONS}
    by_remedy: dict[str, dict[str, list[str]]] = {}
    for name, (why, instead) in (refused | REFUSED_OPTIONS).items():
        by_remedy.setdefault(instead, {}).setdefault(why, []).append(name)
    for instead, reasons in by_remedy.items():
        cells = "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
        lines.append(f"| {instead} | {cells} |")
    for title, reasons in (
        ("Not built here", NOT_BUILT),
        ("Not for batches of graphs", NOT_FOR_BATCHES),
    ):
        by_reason: dict[str, list[str]] = {}
        for name, why in reasons.items():
            by_reason.setdefault(why, []).append(name)
        lines += ["", f"## {title}", ""]
        lines += [f"- {', '.join(names)}: {why}" for why, names in by_reason.items()]
    known = {word.strip(",") for case, _ in rows for word in case.name.split()}
    known |= set(refused) | set(NOT_BUILT) | set(NOT_FOR_BATCHES) | NO_LAYER
    for group, names in (
        ("convolutions", pyg.conv.__all__),
        ("norms", pyg.norm.__all__),
        ("aggregations", pyg.aggr.__all__),
        ("pools", pyg.pool.__all__),
        ("models", pyg.models.__all__),
    ):
        missing = sorted(name for name in names if name not in known and name[0].isupper())
        if missing:
            lines += [f"- {group} not tried: {', '.join(missing)}"]
    return lines


if __name__ == "__main__":
    main()
