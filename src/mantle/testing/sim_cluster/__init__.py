"""A whole pool on paper: the real scheduler and placement under a virtual clock, with faults."""
