"""What messages along edges are made of: terms of nodes, edges and self-loops."""
