"""Beams: several texts of a row at once, of which the most probable finished one is kept.

Speculative beam sampling of dynamic width (DSBD), plain beam sampling, and beam search as in ``generate``;
lists of items in ``top_k``. Beside the package's shape letters: B input beams of a layer, n drafts of one, W
outputs, S = B * V pairs of a beam and a token, C nodes that a row's cache holds behind its text.
"""
