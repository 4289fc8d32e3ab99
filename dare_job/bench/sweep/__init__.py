"""Which architectures the engine supports: a tiny random model of each, compared with ``generate``."""
