"""Quality against speed, as verification is relaxed."""
