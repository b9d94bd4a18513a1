"""Frozen values that every stage shares; imports nothing of ours."""
