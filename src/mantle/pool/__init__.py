"""One pool of accelerators for all models: catalogue, replicas, placement, eviction."""
