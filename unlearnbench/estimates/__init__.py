"""Estimates of work, hours and memory of a plan, before anything is loaded."""
