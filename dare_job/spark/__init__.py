"""Everything that knows how Spark is started and how work is cut for it."""
