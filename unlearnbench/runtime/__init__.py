"""One process among many: ranks, shards, devices, signals, memory, provenance."""
