"""How many bytes a step takes: read, modelled, budgeted, committed."""
