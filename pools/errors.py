"""The exception of this package."""


class PoolError(Exception):
    """A pool cannot be built, opened or used. The message names the file or value and says what to do."""
