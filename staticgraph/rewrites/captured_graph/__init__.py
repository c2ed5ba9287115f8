"""The graph that ``torch.compile`` captured: its canonical operations, and what is known of it."""
