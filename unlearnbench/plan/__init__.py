"""Plans: the runs of a configuration with their content hashes; pure."""
