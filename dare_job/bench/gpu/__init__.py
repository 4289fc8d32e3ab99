"""What the engine does on a GPU, in one run: ``python -m dare_job.bench.gpu`` (``bench gpu``).

Imports ``dare_job.decode``, the oracle drafter and ``pools`` alone, so that a machine with torch,
transformers, numpy and numba can run it.
"""
