"""StaticGraphRunner: which way each bucket runs, and what is said of it afterwards."""
