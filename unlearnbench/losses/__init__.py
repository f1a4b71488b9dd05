"""Losses per token from hidden states, without a [tokens, vocabulary] matrix in memory."""
