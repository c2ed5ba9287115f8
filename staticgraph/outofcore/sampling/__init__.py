"""Neighbours sampled hop by hop into static shapes."""
