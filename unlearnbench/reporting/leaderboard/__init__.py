"""Leaderboard of several groups: a line per record, with evidence for its numbers."""
