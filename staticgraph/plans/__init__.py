"""Choosing the few capacities of a plan from sizes and memory, and the plan's file."""
