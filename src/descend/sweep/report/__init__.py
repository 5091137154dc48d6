"""The page of a sweep, from its ``sweep.json`` alone."""
