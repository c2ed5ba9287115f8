"""The bytes of a request -> graphs in flat arrays, or one line of what is wrong; without torch."""
