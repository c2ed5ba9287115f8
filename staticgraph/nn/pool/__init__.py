"""Static forms of pools that select or cluster nodes."""
