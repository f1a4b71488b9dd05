"""Benchmarks in TOFU's schema, and their rows as tokens."""
