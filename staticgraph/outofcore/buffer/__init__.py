"""The buffer of resident partitions, and their contents."""
