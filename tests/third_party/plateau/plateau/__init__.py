"""A method, a metric and an attack for unlearnbench."""
