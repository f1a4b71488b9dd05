"""Built-in methods: one file each, found only through their entry points."""
