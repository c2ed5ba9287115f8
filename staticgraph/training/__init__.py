"""The training loop of the command line: configuration, checkpoints, metrics and plots."""
