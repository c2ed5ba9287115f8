"""Applies all rewrites, in their order, to one captured graph."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.fx import GraphModule

from staticgraph.errors import NotStatic
from staticgraph.internals.fakes import FakeTensor
from staticgraph.nn.context.leaf_calls import batch_facts
from staticgraph.rewrites.attention import dense_attention
from staticgraph.rewrites.captured_graph.captured import Captured, RewriteTarget
from staticgraph.rewrites.embeddings import small_tables, tables
from staticgraph.rewrites.layers import (
    batch_norm,
    cat_linear,
    dropout,
    gradient_sums,
    linear,
)
from staticgraph.rewrites.neighbours import (
    added_loops,
    gcn,
    messages,
    pools,
    score_products,
    softmax,
)
from staticgraph.rewrites.passes.canonicalize import canonicalize
from staticgraph.rewrites.passes.eliminate import drop_twins, drop_unread
from staticgraph.rewrites.passes.functionalize import functionalize
from staticgraph.rewrites.passes.regions import fence_regions

Rewrite = Callable[[Captured], None]

# Rewrites that match more of a graph come before those that match a part of it.
ORDER: Sequence[Rewrite] = (
    tables.rewrite,
    small_tables.rewrite,
    gcn.rewrite,
    score_products.rewrite,
    softmax.rewrite,
    added_loops.rewrite,
    dense_attention.rewrite,
    pools.rewrite,
    messages.rewrite,
    cat_linear.rewrite,
    tables.unfold,
    dropout.rewrite,
    batch_norm.rewrite,
    linear.rewrite,
)


@contextmanager
def _named(captured: Captured) -> Iterator[None]:
    """Says of what a rewrite raises that it is an error of this library, and in which rewrite.

    Raises:
        NotStatic: a rewrite raised something else.
    """
    try:
        yield
    except NotStatic:
        raise
    except Exception as error:
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        passes = [file for file in files if "/rewrites/" in file and file != __file__]
        applied = ", ".join(sorted({place.rewrite for place in captured.done}))
        name = Path(passes[0]).stem if passes else f"to one of {applied or 'its operations'}"
        raise NotStatic(
            f"the rewrite {name} failed, which is an error of staticgraph and not of the model: "
            f"{type(error).__name__}: {error} ({files[-1]}). Please report it; mode='eager' runs "
            "no rewrites"
        ) from error


def rewrite(module: GraphModule, target: RewriteTarget, inputs: Sequence[Any] = ()) -> Captured:
    """Rewrites a graph from Dynamo in place, and returns it with a record of what was done.

    Args:
        module: the graph as passed to a backend of ``torch.compile``.
        target: what will run it.
        inputs: the inputs as passed to the backend; in a dry run their fake mode makes tensors.

    Raises:
        NotStatic: a rewrite failed.
    """
    fakes = [example for example in inputs if isinstance(example, FakeTensor)]
    captured = Captured(module, target, fakes[0].fake_mode if fakes else None)
    with _named(captured):
        captured.autocast = fence_regions(captured.graph)
        functionalize(captured)
        if not captured.refused:
            canonicalize(captured)
            drop_unread(captured.graph)
            drop_twins(captured.graph)
            for rule in ORDER:
                captured.look_again()
                rule(captured)
                drop_unread(captured.graph)
            gradient_sums.rewrite(captured)
        for node in list(captured.graph.nodes):
            if node.op == "call_function" and node.target is batch_facts:
                captured.graph.erase_node(node)
        if not captured.refused:
            drop_unread(captured.graph)
        captured.graph.lint()
        module.recompile()
    return captured
