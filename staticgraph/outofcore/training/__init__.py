"""Trainers for one large graph: links, links with a graph neural network encoder, and nodes."""
