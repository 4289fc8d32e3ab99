"""Sampling with draft trees beside sampling without drafts: acceptance, block efficiency, time."""
