"""Which graphs go together this epoch: order, seed, rank, resume."""
