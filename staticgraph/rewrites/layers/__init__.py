"""Linear layers, BatchNorm and dropout, with what stands around them."""
