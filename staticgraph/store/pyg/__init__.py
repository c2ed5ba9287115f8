"""PyG's graphs, one by one, to flat columns."""
