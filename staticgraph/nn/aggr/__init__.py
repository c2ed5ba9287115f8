"""Static forms of aggregations whose stock form reads a shape from data."""
