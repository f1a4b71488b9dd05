"""Built-in modifiers: one file each, found only through their entry points."""
