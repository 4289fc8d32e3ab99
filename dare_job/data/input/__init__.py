"""Tables of interactions, users and items, in any format, read in one process or by Spark's workers."""
