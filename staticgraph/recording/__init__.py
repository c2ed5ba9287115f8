"""Work recorded once and repeated: recorders, recorded steps, lent results, recorded collation."""
