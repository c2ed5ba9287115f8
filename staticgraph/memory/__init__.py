"""The bytes that a step takes: counts, fitted models, budgets and commitments."""
