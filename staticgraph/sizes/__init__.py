"""Sizes of graphs, the limits they are held to, and how many graphs have which."""
