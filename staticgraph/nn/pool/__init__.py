"""Pools that select or cluster nodes, made static."""
