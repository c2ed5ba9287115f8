"""The parts of messages along edges: terms of nodes, edges and self-loops."""
