"""How a runner's steps run: eager, compiled or replayed, one at a time, within its budget."""
