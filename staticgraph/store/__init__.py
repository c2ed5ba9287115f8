"""A data set as flat columns: the store itself, its files, and the way from PyG's ``Data``."""
