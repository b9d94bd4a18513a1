"""Tenants, keys, quotas and reservations: kept in tables, changed while the server runs."""
