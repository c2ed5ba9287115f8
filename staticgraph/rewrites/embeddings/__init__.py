"""Rewrites of sums of embedding tables, and of operations on their rows."""
