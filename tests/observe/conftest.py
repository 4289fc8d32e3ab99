"""Loggers in the state of a new process."""

import pytest


@pytest.fixture(autouse=True)
def _fresh(fresh_loggers):
    pass
