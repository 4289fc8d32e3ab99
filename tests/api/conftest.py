"""One loaded model for the tests of the Python interface."""

import pytest

from dare_job import LLM


@pytest.fixture(scope="session")
def llm():
    return LLM("embedded", decode={"nodes": 16, "batch_size": 3})
