"""The graph that ``torch.compile`` captured: its canonical operations, and facts about it."""
