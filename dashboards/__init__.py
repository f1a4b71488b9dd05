"""Figures and pages drawn from the table that a report is."""
