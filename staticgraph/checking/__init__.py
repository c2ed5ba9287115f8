"""Whether a model can run over padding, and be recorded, and what prevents it."""
