"""Several processes: who they are, what they agree on, and the sum of their gradients."""
