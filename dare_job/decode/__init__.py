"""The decode engine: drafts from old text, verified by the target model as token trees.

Knows nothing of Spark, tables, prompts sets or stages. Shape letters used in this package:
R rows decoded together, N draft nodes a row, Q = N + 1 queries a row (column 0 is the root, the last
emitted token), L text positions, V vocabulary.
"""

from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import EngineSettings, Request, Result

__all__ = ["Engine", "EngineSettings", "Request", "Result", "Target"]
