"""What a run may touch, saved and restored: model, optimizer, hooks."""
