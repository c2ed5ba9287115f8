"""Compiles, records and times every bucket before the first step."""
