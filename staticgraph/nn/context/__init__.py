"""What a layer knows of the batch that runs through it."""
