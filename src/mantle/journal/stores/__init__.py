"""Places to keep the journal."""
