"""StaticGraphRunner: how each bucket runs, and the report of what ran."""
