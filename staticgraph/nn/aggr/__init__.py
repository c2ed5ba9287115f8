"""Aggregations whose stock form reads a shape from data, made static."""
