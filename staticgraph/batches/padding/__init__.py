"""Batches that somebody else's loader made, padded to the fixed shapes of a plan."""
