"""Compares this library with plain PyG, in turns, on a user's model and data."""
