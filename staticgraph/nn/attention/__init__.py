"""Static forms of attention over all nodes and among the nodes of each graph."""
