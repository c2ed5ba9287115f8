"""After a backward: gradients are accumulated, averaged over ranks, clipped; the optimizer
steps."""
