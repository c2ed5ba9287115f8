"""Which results are rows of the batch, and how the padding among them is treated."""
