"""Sampling with draft trees beside plain sampling: acceptance, block efficiency and time in one run."""
