"""Measurements of the figures in the documents; not in the wheel."""
