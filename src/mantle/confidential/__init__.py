"""Content stays out of logs, metrics and error texts."""
