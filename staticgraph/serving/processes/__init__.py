"""Processes that read bodies beside the one with the model, and what the two say to each other."""
