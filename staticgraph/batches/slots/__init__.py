"""Fixed memory that batches stand in, and how many of its rows are real."""
