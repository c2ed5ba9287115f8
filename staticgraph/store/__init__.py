"""A data set as flat columns: the store, its files on disk, and the conversion from PyG's
``Data``."""
