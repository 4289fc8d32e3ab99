"""Acceptance rates of a draft model under each exact sampling method, compared with the optimum."""
