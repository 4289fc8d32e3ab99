"""Beams: quality against speed of beam sampling, speculative sampling and DSBD, in one run."""
