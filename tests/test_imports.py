"""Which folder may import which. Lazy and type-only imports count as well."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOT_FILES = {"__init__", "__main__", "errors", "job", "pipeline", "schemas", "workspace"}
GIVEN = ("dare_job.errors", "dare_job.schemas", "dare_job.job", "dare_job.workspace")
LAYERS = ("settings", "request", "model", "verify", "engine", "sampling", "draft", "beam", "trie_search")
MATHEMATICS = ("distributions", "kseq", "random_streams", "rules", "traversal", "verify", "warp")

# A folder or file, and all that it may import of this repository beside itself.
ONLY = {
    "pools": (),
    "dare_job.storage": ("dare_job.errors",),
    "dare_job.models": ("dare_job.storage", "dare_job.errors"),
    "dare_job.decode": ("pools", "dare_job.errors"),
    "dare_job.spark": ("dare_job.storage", "dare_job.config", "dare_job.errors"),
    "dare_job.tables": ("dare_job.storage", "dare_job.spark", "dare_job.models", *GIVEN),
    "dare_job.observe": ("dare_job.storage", "dare_job.spark", "dare_job.models", "dare_job.tables", *GIVEN),
} | {f"dare_job.decode.sampling.{name}": (
        "dare_job.decode.sampling", "dare_job.decode.settings", "dare_job.errors") for name in MATHEMATICS}

# A folder, and all that may import it beside itself.
ONLY_FROM = {
    "dare_job.bench": (),
    "dare_job.cli": ("dare_job.__main__", "dare_job.bench"),
    "dare_job.stages": ("dare_job.pipeline", "dare_job.evaluate.curve.written", "dare_job.bench"),
}

# A folder, and what it may not import.
NEVER = {f"dare_job.{folder}": tuple(f"dare_job.{name}" for name in ("stages", "evaluate", "training", "cli"))
         for folder in ("generate", "publish", "recommend")} | {
    f"dare_job.decode.{layer}": tuple(f"dare_job.decode.{above}" for above in LAYERS[number + 1:])
    for number, layer in enumerate(LAYERS)}

# Packages of others that a folder may not import, not even inside a function.
WITHOUT = {
    "pools": ("torch", "pyspark", "faiss", "transformers"),
    "dare_job.decode": ("pyspark", "faiss", "airflow", "pandas", "pyarrow"),
    "dare_job.storage": ("torch", "pyspark", "transformers"),
    "dare_job.config": ("torch", "pyspark", "transformers"),
}


def _modules() -> dict[str, Path]:
    found = {}
    for path in [*ROOT.glob("dare_job/**/*.py"), *ROOT.glob("pools/**/*.py")]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


def _imports(module: str) -> set[str]:
    """Modules that a file imports anywhere in it; a name is imported from the module that it is in."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: line {node.lineno} is a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return found - {module}


EVERYTHING = {module: _imports(module) for module in MODULES}
OWN = {module: names & MODULES.keys() for module, names in EVERYTHING.items()}


def _in(module: str, *folders: str) -> bool:
    return any(module == folder or module.startswith(folder + ".") for folder in folders)


def _arrows(imports=OWN):
    return [(source, target) for source, targets in imports.items() for target in sorted(targets)]


@pytest.mark.parametrize("folder", [*ONLY, *ONLY_FROM, *NEVER, *WITHOUT])
def test_the_rules_name_what_exists(folder):
    assert any(_in(module, folder) for module in MODULES)


@pytest.mark.parametrize("folder", ONLY)
def test_a_folder_imports_only(folder):
    allowed = (folder, *ONLY[folder])
    assert [arrow for arrow in _arrows() if _in(arrow[0], folder)
            and not _in(arrow[1], *allowed) and arrow[1] != "dare_job"] == []


@pytest.mark.parametrize("folder", ONLY_FROM)
def test_a_folder_is_imported_only_from(folder):
    allowed = (folder, *ONLY_FROM[folder])
    assert [arrow for arrow in _arrows() if _in(arrow[1], folder) and not _in(arrow[0], *allowed)] == []


@pytest.mark.parametrize("folder", NEVER)
def test_a_folder_never_imports(folder):
    assert [arrow for arrow in _arrows() if _in(arrow[0], folder) and _in(arrow[1], *NEVER[folder])] == []


@pytest.mark.parametrize("folder", WITHOUT)
def test_a_folder_does_without_packages(folder):
    assert [arrow for arrow in _arrows(EVERYTHING)
            if _in(arrow[0], folder) and _in(arrow[1], *WITHOUT[folder])] == []


def test_sampling_mathematics_needs_numpy_torch_and_numba_alone():
    allowed = ("dare_job", "numpy", "torch", "numba", *sys.stdlib_module_names)
    files = [f"dare_job.decode.sampling.{name}" for name in MATHEMATICS]
    assert [arrow for arrow in _arrows(EVERYTHING) if arrow[0] in files and not _in(arrow[1], *allowed)] == []


def test_publish_and_recommend_take_few_files_of_generate():
    used = {(source.split(".")[1], target) for source, target in _arrows()
            if _in(source, "dare_job.publish", "dare_job.recommend") and _in(target, "dare_job.generate")}
    assert used == {("publish", "dare_job.generate.shard_plan")} | {
        ("recommend", f"dare_job.generate.{name}") for name in ("shard_plan", "hangs", "engines")}


def test_decode_has_no_file_beside_its_layers():
    found = {module.split(".")[2] for module in MODULES if module.startswith("dare_job.decode.")}
    assert found == set(LAYERS)


def _circle(graph: dict) -> str:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " -> ".join(reversed(error.args[1]))
    return ""


def test_there_is_no_circle():
    assert _circle({"a": {"b"}, "b": {"a"}}) != "" == _circle(OWN)


def test_there_are_seven_root_files():
    assert {path.stem for path in (ROOT / "dare_job").glob("*.py")} == ROOT_FILES


def test_a_run_reaches_every_file_of_decode():
    reached, todo = set(), ["dare_job.pipeline", *(name for name in MODULES if _in(name, "dare_job.stages"))]
    while todo:
        module = todo.pop()
        if module not in reached:
            reached.add(module)
            todo += OWN[module]
    assert [module for module, path in MODULES.items() if _in(module, "dare_job.decode")
            and path.name != "__init__.py" and module not in reached] == []


def test_a_file_of_stages_is_a_stage():
    for module, path in MODULES.items():
        if module.startswith("dare_job.stages."):
            assert "run" in {node.name for node in ast.parse(path.read_text()).body
                             if isinstance(node, ast.FunctionDef)}, module


def _imported(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_pools_imports_nothing_heavy():
    names = [name for name in MODULES if name.startswith("pools.")]
    heavy = (*WITHOUT["pools"], "sklearn", "dare_job")
    assert _imported(f"import sys\nfor name in {names!r}: __import__(name)\n"
                     f"print([name for name in {heavy!r} if name in sys.modules])") == "[]"


def test_decode_works_where_spark_cannot_be_imported():
    """transformers before 5.21 imports pandas where it finds it, so these are made impossible to import."""
    names = [name for name in MODULES if _in(name, "dare_job.decode")]
    blocked = ("pyspark", "faiss", "airflow", "pandas", "dare_job.stages", "dare_job.data", "dare_job.spark")
    assert _imported(f"import sys\nsys.modules.update(dict.fromkeys({blocked!r}))\n"
                     f"for name in {names!r}: __import__(name)\nprint('imported')") == "imported"
