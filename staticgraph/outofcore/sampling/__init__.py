"""Neighbour sampling, hop by hop, into static shapes."""
