"""Passes that bring a captured graph into canonical form before any operator is inserted."""
