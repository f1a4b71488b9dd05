"""Results that several groups put together: a line per record, with evidence for its numbers."""
