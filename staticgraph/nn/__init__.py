"""Layers whose result padding would change, or whose shape depends on data, made static."""

from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.convert import context_of, convert

__all__ = ["BatchContext", "context_of", "convert"]
