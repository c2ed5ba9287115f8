"""Which graphs form batches in an epoch: order, seed, rank, resume."""
