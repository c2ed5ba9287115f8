"""One step: how a model is called, its loss and update, compiled or not, and what prevents it."""
