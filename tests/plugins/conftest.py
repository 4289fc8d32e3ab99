"""Modules of plug-ins for one test."""

import sys

import plugin_page
import pytest


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Factory: write a module that can be imported, and forget it after the test."""
    written = []

    def write(name: str, text: str):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        sys.modules.pop(name, None)
        written.append(name)
        return name

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a module that is written again is read again
    yield write
    for name in written:
        sys.modules.pop(name, None)


@pytest.fixture
def page(module):
    """The module with the classes of the page "Add your method"."""
    return module("my_methods", "\n\n".join(plugin_page.BLOCKS))
