"""Losses per token from hidden states, never holding a [tokens, vocabulary] matrix."""
