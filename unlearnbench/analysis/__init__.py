"""Analysis of a table of results: best settings, confidence of the order, A against B."""
