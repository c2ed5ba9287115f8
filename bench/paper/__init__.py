"""The paper that packing is compared with: its heuristics, and its printed figures reproduced."""
