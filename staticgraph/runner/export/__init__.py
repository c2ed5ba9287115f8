"""A model as compiled code on disk, and how it is loaded."""
