"""Sums of embedding tables in one lookup; small tables are folded into a single one.

OGB's atom encoder is a sum over nine tables, its bond encoder a sum over three: twelve lookups, and
twelve scatters in the backward. Here the tables are concatenated and one operator sums the rows.
Where the tables have few combinations (5 x 6 x 2 = 60 for bonds), the sums themselves form one
small table, and a message passing layer that receives the result reads rows of that table instead
of ``[E, F]`` of memory; its gradient has 60 rows, too.
"""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from staticgraph.internals.hooks import user_unhooked
from staticgraph.kernels.table_sum import fold_codes, table_sum
from staticgraph.models.encoders import CategoryEncoder
from staticgraph.nn.fused.layer import Fused

# Combinations up to which summed tables are folded: at 64 columns of float32 the folded table is
# 64 KiB, which stays in the second-level cache of a CPU core and of a GPU.
MAX_FOLDED = 256

# Encoders of other packages with the same arithmetic, by qualified name, and the attribute that
# lists their tables. Named, not imported: the package need not be installed.
TABLES_OF = {
    "ogb.graphproppred.mol_encoder.AtomEncoder": "atom_embedding_list",
    "ogb.graphproppred.mol_encoder.BondEncoder": "bond_embedding_list",
}
_forms: dict[type, type] = {}


class FoldedEdges(NamedTuple):
    """Edge features that are rows of a small table, without materialising ``[E, F]``.

    Attributes:
        rows: ``[V, F]``.
        code: ``[E]`` int64, the row of each edge.
    """

    rows: Tensor
    code: Tensor

    @property
    def value(self) -> Tensor:
        """``[E, F]``, one row per edge."""
        return self.rows.index_select(0, self.code)


class FusedEncoder(Fused):
    """Mixin for an encoder class; ``tables_attribute`` names its list of embeddings."""

    tables_attribute: str
    _fused_offsets: Tensor
    _fused_combinations: Tensor | None

    def forward(self, values: Tensor) -> Tensor:
        """``[R, columns]`` int64 to ``[R, F]``; the folded table is attached to the result for a
        convolution."""
        found = self.folding(values)
        if not isinstance(found, FoldedEdges):
            return found
        out = found.value
        if not torch.compiler.is_compiling():
            out._staticgraph_fold = found  # pyright: ignore[reportAttributeAccessIssue]
        return out

    def folding(self, values: Tensor) -> Tensor | FoldedEdges:
        """The encoded rows, in folded form if the tables have few combinations."""
        tables = getattr(self, self.tables_attribute)
        reason = None if self.batch is not None else "no batch is bound: it ran outside the runner"
        if any(_special(table) for table in tables):
            reason = "a table has hooks, padding_idx, max_norm, sparse or scaled gradients"
        if not self.use(reason):
            return super().forward(values)  # pyright: ignore[reportAttributeAccessIssue]
        index = values.view(len(values), -1).long()
        weight = torch.cat([table.weight for table in tables])
        offsets, combinations = self._fused_offsets, self._fused_combinations
        if combinations is None or len(index) < 4 * len(combinations):
            return table_sum(index, offsets, weight)
        return FoldedEdges(table_sum(combinations, offsets, weight), fold_codes(index, offsets))

    def prepare(self) -> None:
        """Registers the offset of each table, and all combinations of entries if they are few.

        Both are buffers that move with the module and are not part of its state.
        """
        assert isinstance(self, torch.nn.Module)
        tables = getattr(self, self.tables_attribute)
        sizes = [table.num_embeddings for table in tables]
        device = tables[0].weight.device
        offsets = torch.tensor([0, *accumulate(sizes)], device=device)
        few = None
        if len(sizes) > 1 and prod(sizes) <= MAX_FOLDED:
            few = torch.cartesian_prod(*map(torch.arange, sizes)).to(device)
        self.register_buffer("_fused_offsets", offsets, persistent=False)
        self.register_buffer("_fused_combinations", few, persistent=False)


class FusedCategoryEncoder(FusedEncoder, CategoryEncoder):
    """Takes the place of ``models.encoders.CategoryEncoder``, with the same state."""

    tables_attribute = "tables"


def folded(value: Tensor) -> FoldedEdges | None:
    """Returns the folded table that a fused encoder attached to its result, or None."""
    return getattr(value, "_staticgraph_fold", None)


def encoder_form(module: torch.nn.Module) -> type | None:
    """Returns the fused form of an encoder, or None if the module is not one."""
    stock = type(module)
    if stock is CategoryEncoder:
        return FusedCategoryEncoder
    attribute = TABLES_OF.get(f"{stock.__module__}.{stock.__qualname__}")
    if attribute is None:
        return None
    if stock not in _forms:
        _forms[stock] = type(
            f"Fused{stock.__name__}", (FusedEncoder, stock), {"tables_attribute": attribute}
        )
    return _forms[stock]


def _special(table: torch.nn.Embedding) -> bool:
    return (
        table.padding_idx is not None
        or table.max_norm is not None
        or table.sparse
        or table.scale_grad_by_freq
        or not user_unhooked(table)
    )
