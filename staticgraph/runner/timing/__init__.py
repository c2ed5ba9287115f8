"""How the ways of running a bucket are timed, and how one of them is chosen."""
