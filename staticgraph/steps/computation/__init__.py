"""What a step computes: the model as it was set up, its forward and its loss."""
