"""Trainers of one large graph: for links, for links below an encoder, for nodes."""
