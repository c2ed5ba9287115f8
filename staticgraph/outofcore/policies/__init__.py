"""Policies: which partitions are resident together, and in what order."""
