"""Plug-ins to test, from the command line."""

import pytest

from dare_job.config.plugins import PlugIn
from dare_job.contract.options import OPTIONS


def pytest_ignore_collect(collection_path, config):
    """Leave out the tests of plug-ins that are not named."""
    name = collection_path.stem.removeprefix("test_")
    return True if name in OPTIONS and not config.getoption(name) else None


def pytest_collection_modifyitems(config):
    if not any(config.getoption(name) for name in OPTIONS):
        raise pytest.UsageError("name what to test: --drafter, --verifier or --draft-budget "
                                "package.module:Class")


def pytest_generate_tests(metafunc):
    if "plugin" in metafunc.fixturenames:
        name = metafunc.module.__name__.rpartition("test_")[2]
        flag, texts = f"--{name.replace('_', '-')}", metafunc.config.getoption(name)
        metafunc.parametrize("plugin", [PlugIn.parse(OPTIONS[name], flag, text) for text in texts], ids=texts)
