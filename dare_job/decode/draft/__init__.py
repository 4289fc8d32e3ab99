"""Drafters: they take the rows' texts and return trees of draft tokens."""
