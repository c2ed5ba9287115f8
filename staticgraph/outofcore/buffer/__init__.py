"""The partitions that are resident now, and what they hold."""
