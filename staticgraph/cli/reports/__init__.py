"""Tables and pictures of the commands."""
