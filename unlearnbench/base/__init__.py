"""Errors, console, atomic and hashed files, locks, one process among many, provenance."""
