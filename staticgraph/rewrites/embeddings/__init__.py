"""Sums of embedding tables, and what is computed of their rows."""
