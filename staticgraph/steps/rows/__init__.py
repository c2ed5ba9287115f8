"""Which results are rows of the batch, and what becomes of the padding among them."""
