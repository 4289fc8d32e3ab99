"""Forward passes in static shapes, recorded as CUDA graphs and replayed: see ``forward``."""

from dare_job.decode.model.cuda_graphs.forward import StaticForward

__all__ = ["StaticForward"]
