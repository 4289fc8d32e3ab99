"""Forwards of fixed shapes, which a GPU can record once and replay: see ``forward``."""

from dare_job.decode.model.cuda_graphs.forward import StaticForward

__all__ = ["StaticForward"]
