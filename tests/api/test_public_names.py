"""The stable names: what the package exports, for programs and for type checkers."""

import ast
from pathlib import Path

import pytest

import dare_job

ROOT = Path(dare_job.__file__).parent


def test_every_name_is_there_and_no_other():
    assert {name: getattr(dare_job, name).__name__ for name in dare_job.__all__} == {
        name: name for name in dare_job.__all__}
    assert set(dare_job.__all__) == set(dare_job._PLACES) <= set(dir(dare_job))
    with pytest.raises(AttributeError, match="has no attribute 'Engine'"):
        dare_job.Engine  # noqa: B018


def test_type_checkers_see_the_same_names():
    assert (ROOT / "py.typed").is_file()
    stub = ast.parse((ROOT / "__init__.pyi").read_text())
    imported = {node.names[0].asname: f"dare_job.{dare_job._PLACES[node.names[0].name]}" == node.module
                for node in stub.body if isinstance(node, ast.ImportFrom)}
    assert imported == dict.fromkeys(dare_job.__all__, True)
    listed, = (node.value for node in stub.body if isinstance(node, ast.Assign))
    assert ast.literal_eval(listed) == dare_job.__all__
