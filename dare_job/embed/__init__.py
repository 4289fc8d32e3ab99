"""Learns vectors of users and items, and clusters them."""
