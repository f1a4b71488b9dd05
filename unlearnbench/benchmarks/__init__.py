"""The benchmarks that come with unlearnbench."""
