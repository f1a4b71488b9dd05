"""The attacks that come with unlearnbench: a module each, found under its name."""
