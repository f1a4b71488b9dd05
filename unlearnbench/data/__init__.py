"""Benchmarks loaded from settings, and their rows as tokens and batches."""
