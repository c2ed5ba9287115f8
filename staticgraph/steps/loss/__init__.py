"""The mean of a loss over real rows and labelled targets."""
