"""Rewrites of linear layers, BatchNorm and dropout, with the operations around them."""
