"""Forward passes in static shapes, recorded as CUDA graphs and replayed: see ``forward``."""
