"""A step traced without being compiled, and what in it cannot be static."""
