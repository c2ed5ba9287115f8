"""Conversion of PyG's graphs, read one by one, to flat columns."""
