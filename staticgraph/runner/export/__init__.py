"""A model as compiled code on disk, and the way back."""
