"""Built-in configurations: YAML files, found only through their entry point."""
