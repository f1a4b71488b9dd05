"""Bytes on disk: read within bounds, written whole, hashed, locked."""
