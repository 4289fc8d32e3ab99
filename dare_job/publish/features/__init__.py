"""Turns texts into features: vectors, cluster ids and stable integer ids of entities."""
