"""Top-K recommendation at run time: item ids, the catalogue, and the batches that workers process."""
