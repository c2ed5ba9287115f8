"""The bytes of a request -> graphs in flat arrays, or a one-line error; without torch."""
