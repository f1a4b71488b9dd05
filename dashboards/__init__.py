"""The report page and its figures."""
