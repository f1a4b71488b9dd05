"""Connection to MLflow, and conversion of records to its runs."""
