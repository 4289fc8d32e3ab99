"""The mathematics of sampling stands alone: numpy, torch, numba and the project's errors."""

import ast
import sys
from pathlib import Path

import dare_job.decode.sampling as sampling

ALLOWED = {"numpy", "torch", "numba", "dare_job.errors"}
ENGINE_FILES = {"compiled.py", "drafts.py", "engine.py", "nonfinite.py", "tree_verification.py"}


def test_imports():
    for path in Path(sampling.__file__).parent.glob("*.py"):
        if path.name in ENGINE_FILES:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module]
            for name in names:
                own = name.startswith("dare_job.decode.sampling")
                assert own or name in ALLOWED or name.split(".")[0] in sys.stdlib_module_names, (path, name)
