"""The job's loggers as a new process has them."""

import pytest


@pytest.fixture(autouse=True)
def _fresh(fresh_loggers):
    pass
