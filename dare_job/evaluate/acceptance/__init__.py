"""Acceptance rates of a draft model under each exact sampling method, beside the optimum."""
