"""After a backward: gradients accumulated, averaged over ranks, clipped; the optimizer step."""
