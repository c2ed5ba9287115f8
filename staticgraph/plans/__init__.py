"""Sizes, and memory, to the few capacities of a plan: the file, the choice, its margins."""
