"""Metrics, logs and traces: what can be seen from outside."""
