"""What follows a backward: gradients added up, averaged over ranks, clipped; the optimizer."""
