"""Retrieval pools: read-only indexes of texts, and draft trees retrieved from them, without torch or Spark.

``index.Index.build`` and ``save`` make a pool, ``Index.open`` maps it, ``draft.draft`` retrieves the
trees of a batch, blended over several pools. ``attributes`` and ``router`` assign entities to pools.
"""


class PoolError(Exception):
    """A pool cannot be built, opened or used. The message names the file or value and says what to do."""
