"""What a layer knows about the current batch."""
