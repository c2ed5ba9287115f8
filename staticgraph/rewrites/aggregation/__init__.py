"""Rewrites of sums, means and maxima over neighbours, and over the rows of each graph."""
