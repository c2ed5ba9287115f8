"""Static forms of PyG's utilities whose stock form reads a shape from data."""
