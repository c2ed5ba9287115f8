"""Rewrites of messages along edges, of any kind, to programs."""
