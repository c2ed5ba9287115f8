"""How ways of running a bucket are timed, and which of them is taken."""
