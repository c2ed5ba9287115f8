"""Attention over all nodes, and among those of each graph, made static."""
