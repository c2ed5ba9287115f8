"""Answering requests: many callers, one device, a few fixed shapes."""
