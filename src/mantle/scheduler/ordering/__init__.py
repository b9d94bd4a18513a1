"""Within one tenant's queue: in which order? Arrival, unless a deadline is nearer."""
