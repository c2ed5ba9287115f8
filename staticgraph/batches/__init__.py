"""Batches of fixed shape: their memory, how they are filled, and the way back to graphs."""
