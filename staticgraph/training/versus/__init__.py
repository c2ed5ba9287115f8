"""This library against plain PyG, in turn, on a model and data of the user's own."""
