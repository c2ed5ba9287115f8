"""The paper that packing is measured against: its heuristics, and its printed figures once more."""
