"""Norms over the real rows of a padded batch."""
