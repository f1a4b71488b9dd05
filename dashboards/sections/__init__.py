"""Sections of the page, a folder each: entry points of the group `unlearnbench.sections`."""
