"""Evaluation: answers and their probabilities under a model, reduced to TOFU's metrics."""
