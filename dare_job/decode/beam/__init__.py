"""Beam engines: several texts per row at once, of which the most probable finished one is the result.

They implement speculative beam sampling of dynamic width (DSBD), beam sampling without drafts, and beam
search as in ``generate``. Shape letters besides the package's: B input beams of a layer, n drafts of one, W
outputs, S = B * V pairs of a beam and a token, C nodes in a row's cache after its text.
"""
