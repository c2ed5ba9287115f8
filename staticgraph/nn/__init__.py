"""Static forms of layers whose result depends on padding or whose shapes depend on data."""

from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.convert import context_of, convert

__all__ = ["BatchContext", "context_of", "convert"]
