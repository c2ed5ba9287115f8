"""The error of the padding check: which layer lets padding through, and what to write instead."""

from __future__ import annotations

import torch

from staticgraph.checking.outcome import Difference
from staticgraph.checking.padding_culprit import Culprit, NonFinite
from staticgraph.errors import PaddingLeaks

# What to do, depending on the cause; the last two are added if it was plain PyG that differs.
LAYERS = "Reduce over each graph with a pool and the batch vector, or mask with batch.node_mask"
LOSSES = (
    "In a loss, sg.masked_mean(values, batch) is the mean of rows, and batch.graph_mask "
    "(node_mask, edge_mask) leaves padding out of anything else"
)
SIZES = (
    "; batch.num_nodes, num_edges, num_graphs and sizes of tensors count padding rows, and "
    "batch.num_real_nodes, num_real_edges and num_real_graphs do not"
)
GAPS = (
    "; a missing label (NaN) reads as 0 in a loss, and its entry is left out of the mean: what "
    "depends on torch.isnan of a target needs a mask of its own, as a field of the data"
)


def not_finite(found: Difference, where: NonFinite) -> PaddingLeaks:
    """Returns the error of a value that padding alone makes NaN or infinite, at a known line."""
    assert where.found is not None
    place, line = where.found.where, where.found.line
    of = f", which computes with the field {where.field!r}," if where.field else ""
    return PaddingLeaks(
        f"{found.name} is not finite over padding, and is in plain PyG on the same graphs: "
        f"{place}: {line}{of} {where.how} in padding rows. They hold the values of a real row "
        "(zeros in a field with missing values), but a padding graph may have no nodes, and a "
        "difference of two padding rows may be zero. Give the line a value there, such as "
        "count.clamp(min=1), (x.square().sum(-1) + eps).sqrt(), or torch.where(mask, value, 1) "
        "before it; check_padding=False turns this check off",
        None,
        place,
    )


def leak_of(
    found: Difference,
    culprit: Culprit | None,
    model: torch.nn.Module,
    what: str,
    more: str = "",
) -> PaddingLeaks:
    """Returns the error, which names the layer if it is known; ``more`` is added to the remedy."""
    path, where, line = culprit or Culprit(None)
    remedy = LAYERS
    for kind in ("the buffer ", "the parameter "):
        if path is None and found.name.startswith(kind):
            path = found.name.removeprefix(kind).rpartition(".")[0]
    if path is None:
        named = "no layer does it: look at the loss, and at the function that calls the model"
        remedy = LOSSES
    elif path:
        kind = type(model.get_submodule(path)).__name__
        named = f"the first to differ is {path!r} ({kind})"
    else:
        named = f"none does it: it is the forward of {type(model).__name__}"
    named += f", at {where}: {line}" if where else ""
    return PaddingLeaks(
        f"{what}. Of the layers, {named}. {remedy}{more}; sg.check(model, plan, store) lists "
        "every layer; check_padding=False, in the runner or in StaticGraphs, turns this check off",
        path,
        where,
    )
