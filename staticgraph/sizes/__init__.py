"""Sizes of graphs, limits on them, and how many graphs have which size."""
