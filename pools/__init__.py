"""Retrieval pools: frozen text indexes and the draft trees read from them. No torch, no Spark."""
