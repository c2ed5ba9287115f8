"""Human-readable tables, byte sizes and progress."""
