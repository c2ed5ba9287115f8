"""Graphs of a store written into the arrays of a slot, including padding."""
