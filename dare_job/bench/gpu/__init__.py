"""The engine on a GPU, in one run: ``python -m dare_job.bench gpu``.

Imports only ``dare_job.decode``, the oracle drafter, ``pools`` and what the benches share, so that a machine
with torch, transformers, numpy and numba alone can run it as ``python -m dare_job.bench.gpu``.
"""
