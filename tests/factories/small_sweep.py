"""The beginning of a configuration whose model is trained in a second, for sweeps in tests."""

SMALL_MODEL = """
name: small
data: {source: synthetic, authors: 4, questions_per_author: 3, pretraining_authors: 1}
models:
  - name: tiny
    base: tiny
    architecture:
      {vocabulary: 400, hidden_size: 32, layers: 1, heads: 2, intermediate_size: 32, context: 256}
    preparation:
      {epochs: 1, base_epochs: 1, optimizer: muon, learning_rate: 3.0e-3, batch_size: 16}
forget_fractions: [0.5]
training: {batch_size: 4}
"""
"""YAML, to which a test adds methods, learning rates, epochs and evaluation."""
