"""What a run may touch, saved and put back: model, optimizer, hooks."""
