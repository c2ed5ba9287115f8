"""Rewrites of attention among neighbours, and among the nodes of each graph."""
