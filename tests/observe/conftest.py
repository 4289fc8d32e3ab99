"""The job's loggers as a new process has them."""

import logging

import pytest


@pytest.fixture(autouse=True)
def fresh_loggers():
    """No handlers of ours while the test runs; what was there comes back."""
    loggers = [logging.getLogger(name) for name in ("dare_job", "pools")]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers[:] = []
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate
