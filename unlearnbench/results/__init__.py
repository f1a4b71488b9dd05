"""Records of runs, the table made of them, and the sweep folder that holds them."""
