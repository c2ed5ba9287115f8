"""Rewrites of attention among the nodes of each graph."""
