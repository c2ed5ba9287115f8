"""A batch of fixed shape as models and users see it, and the way back to graphs."""
