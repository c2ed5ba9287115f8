"""Work noted once and repeated: recorders, recorded steps, lent results, collation inside."""
