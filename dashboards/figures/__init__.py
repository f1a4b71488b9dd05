"""Figures drawn with Plotly, and the data that they show."""
