"""The fixed memory of batches, and how many of its rows are real."""
