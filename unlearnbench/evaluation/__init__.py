"""What a model says and how probable it finds each answer, reduced to TOFU's metrics."""
