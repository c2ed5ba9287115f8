"""Every bucket compiled, recorded and timed before the first step."""
