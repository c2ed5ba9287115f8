"""Reads messages of any kind from the captured graph, as programs over edges."""
