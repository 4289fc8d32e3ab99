"""Beams: quality against speed of plain beam sampling, speculative sampling and DSBD, in one run."""
