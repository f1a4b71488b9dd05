"""unlearnbench: compare methods that make a language model forget."""
