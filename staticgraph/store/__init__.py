"""A data set as flat columns: the store, its files, and the conversion from PyG."""
