"""Distributed training: the ranks, what they agree on, and the reduction of their gradients."""
