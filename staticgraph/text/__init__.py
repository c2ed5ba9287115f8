"""Tables, sizes of bytes and progress, for people."""
