"""A step traced without compiling it, and what of it cannot be static."""
