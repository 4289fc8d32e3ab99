"""Vectors of users and items, and their clusters."""
