"""The first layers of the models: one for integer features, one for floats."""

from __future__ import annotations

from torch import Tensor, nn

from staticgraph.store.graph_store import GraphStore

# An integer feature with more values than this is an identifier, not a category: at 64 columns of
# float32 its table would take 256 MB.
MAX_CATEGORIES = 1_000_000


class CategoryEncoder(nn.Module):
    """Integer features ``[n, C]`` or ``[n]`` -> ``[n, hidden]``: sum of one table per column."""

    def __init__(self, sizes: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        self.tables: nn.ModuleList = nn.ModuleList(nn.Embedding(size, hidden) for size in sizes)
        for table in self.tables:
            nn.init.xavier_uniform_(table.weight)  # pyright: ignore[reportArgumentType]

    def forward(self, values: Tensor) -> Tensor:
        """``[n, hidden]``, in the tables' dtype.

        Args:
            values: whole numbers ``[n, C]``, or ``[n]`` for one column, each below its table's
                size.
        """
        columns = values.view(-1, len(self.tables)).long().unbind(1)
        total = self.tables[0](columns[0])
        for table, column in zip(list(self.tables)[1:], columns[1:], strict=True):
            total = total + table(column)
        return total


class NumberEncoder(nn.Module):
    """Float or boolean features ``[n, F]`` or ``[n]`` -> ``[n, hidden]``: one linear layer."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.linear: nn.Linear = nn.Linear(width, hidden)

    def forward(self, values: Tensor) -> Tensor:
        """``[n, hidden]``, in the layer's dtype.

        Args:
            values: ``[n, F]``, or ``[n]`` for one column, of any dtype.
        """
        weight = self.linear.weight
        return self.linear(values.view(-1, weight.shape[1]).to(weight.dtype))


def encoder(store: GraphStore, field: str, hidden: int) -> nn.Module:
    """Returns the first layer for a field: tables for integers, a linear layer for floats.

    Raises:
        ValueError: an integer field has negative values, or too many categories for a table.
    """
    described = store.schema[field]
    if not described.dtype.startswith(("int", "uint")):
        return NumberEncoder(described.width, hidden)
    sizes = store.cardinality(field)
    if max(sizes) > MAX_CATEGORIES:
        raise ValueError(
            f"{field} of {store.name} goes up to {max(sizes) - 1}, too many for an embedding "
            f"table (at most {MAX_CATEGORIES}): give it as float, or as smaller categories"
        )
    column = store.column(field)
    if column.size and column.min() < 0:
        raise ValueError(
            f"{field} of {store.name} is an integer field with values down to {column.min()}, "
            "which an embedding table cannot take: give it as float, or count from 0"
        )
    return CategoryEncoder(sizes, hidden)
