"""What a runner counts, and its report."""
