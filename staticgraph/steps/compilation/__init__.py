"""A step compiled once, and the CUDA graphs that torch records of it."""
