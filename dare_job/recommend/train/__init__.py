"""Recommenders that say item ids: training, baselines, evaluation, and draft models aligned to a target."""
