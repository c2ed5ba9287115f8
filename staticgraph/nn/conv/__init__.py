"""Static forms of convolutions whose stock form reads a shape from data."""
