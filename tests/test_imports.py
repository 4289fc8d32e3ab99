"""Which folder may import which. Lazy and type-only imports count as well."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOT_FILES = {"__init__", "__main__", "errors", "job", "pipeline", "schemas", "workspace"}
LAYERS = ("settings", "prompt", "request", "model", "verify", "engine", "sampling", "draft", "beam",
          "trie_search")
MATHEMATICS = ("distributions", "kseq", "random_streams", "rules", "traversal", "verify", "warp")

# Each folder and root file of dare_job, and those that it may import beside itself. "" and "." are dare_job
# itself. A new folder needs a line here, and a reason in docs/decisions.
ROOMS = {name: {f"dare_job.{room}".rstrip(".") for room in rooms.split()} for name, rooms in {
    "": "",
    "errors": "",
    "schemas": "",
    "workspace": "schemas storage",
    "job": "config models spark workspace",
    "pipeline": "errors generate job observe publish refresh schemas spark stages storage tables workspace",
    "__main__": "cli",
    "storage": "errors",
    "models": "errors storage",
    "config": "decode errors prompts",
    "prompts": "config errors storage",
    "decode": "errors",
    "spark": ". config errors storage",
    "tables": "errors job models schemas spark storage workspace",
    "observe": "errors job schemas storage tables workspace",
    "embed": "errors schemas storage",
    "refresh": "config errors job observe schemas spark storage tables workspace",
    "data": "config decode embed errors job models observe prompts refresh schemas spark storage workspace",
    "inference": "config decode errors models",
    "verifiers": "decode errors",
    "generate": "config data decode embed errors inference job models observe refresh schemas spark storage "
                "tables workspace",
    "publish": "config data decode embed errors generate job models observe refresh schemas spark storage "
               "tables workspace",
    "recommend": "config data decode errors generate inference job models observe schemas spark storage "
                 "tables workspace",
    "stages": "config data embed errors generate job models observe prompts publish recommend refresh "
              "schemas spark storage tables training workspace",
    "evaluate": "config data decode embed errors generate inference job models observe pipeline prompts "
                "publish refresh schemas spark stages storage tables training verifiers workspace",
    "training": ". config data decode embed errors models observe prompts publish recommend schemas "
                "storage workspace",
    "cli": ". api config data decode errors evaluate job observe pipeline publish spark storage training "
           "workspace",
    "bench": "cli config data decode embed errors evaluate generate job models pipeline prompts publish "
             "recommend schemas stages tables training workspace",
    "api": "config decode errors evaluate inference models observe prompts",
    "contract": "config decode errors",
}.items()}
MUTUAL = (("config", "prompts"),)  # pairs of folders that import each other
WITH_POOLS = ("api", "contract", "decode", "inference", "generate", "stages", "evaluate", "training", "bench")

# The files that may import by name: the public names, plug-ins, stages, commands of the benchmarks, packages
# of object stores.
BY_NAME = ("dare_job", "dare_job.config.plugins", "dare_job.pipeline", "dare_job.bench.cli",
           "dare_job.storage.paths")
IMPORTERS = {"import_module", "__import__", "resolve_name", "run_module", "run_path"}

# A folder or file, and all that it may import of this repository beside itself.
ONLY = {"pools": (), "airflow": (), "dare_job.refresh.value": (), "dare_job.refresh.choice": ()} | {
    f"dare_job.decode.sampling.{name}": (
    "dare_job.decode.sampling", "dare_job.decode.settings", "dare_job.errors") for name in MATHEMATICS}

# A folder, and all that may import it beside itself: stricter than ROOMS.
ONLY_FROM = {"dare_job.stages": ("dare_job.pipeline", "dare_job.evaluate.curve.written", "dare_job.bench")}

# A folder, and what it may not import.
NEVER = {f"dare_job.decode.{layer}": tuple(f"dare_job.decode.{above}" for above in LAYERS[number + 1:])
         for number, layer in enumerate(LAYERS)}

# A folder, another one, and all files of the latter that the former imports.
PARTS = (("config", "decode", {"settings"}), ("data", "decode", {"settings"}),
         ("data", "refresh", {"value"}),
         ("publish", "generate", {"shard_plan"}),
         ("recommend", "generate", {"shard_plan", "hangs", "engines"}),
         ("api", "evaluate", {"replay.measure", "replay.drafters"}), ("api", "observe", {"progress"}))

# Packages of others that a folder may not import, not even inside a function.
WITHOUT = {
    "pools": ("torch", "pyspark", "faiss", "transformers"),
    "dare_job.decode": ("pyspark", "faiss", "airflow", "pandas", "pyarrow"),
    "dare_job.api": ("pyspark", "faiss", "airflow"),
    "dare_job.verifiers": ("pyspark", "faiss", "airflow", "pandas", "pyarrow"),
    "dare_job.inference": ("pyspark", "faiss", "airflow", "pandas"),
    "dare_job.storage": ("torch", "pyspark", "transformers"),
    "dare_job.config": ("torch", "pyspark", "transformers"),
}


def _modules() -> dict[str, Path]:
    found = {}
    for path in [path for folder in ("dare_job", "pools", "airflow")
                 for path in ROOT.glob(f"{folder}/**/*.py")]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


@cache
def _imports(module: str) -> set[str]:
    """Modules that a file imports anywhere in it; a name is imported from the module that it is in."""
    found = set()
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: line {node.lineno} is a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return found - {module}


@cache
def _named(module: str) -> set[str]:
    """Modules that a string of a file names, alone or with "." or an attribute after it."""
    found, dotted = set(), re.compile(r"(dare_job|pools)(\.\w+)+[.:]?\w*")
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Constant) and dotted.fullmatch(str(node.value)):
            parts = re.split("[.:]", node.value)
            found |= {".".join(parts[:end]) for end in range(2, len(parts) + 1)} & MODULES.keys()
    return found - {module}


def _own(module: str) -> set[str]:
    """Modules of this project that a file imports."""
    return _imports(module) & MODULES.keys()


def _own_or_named(module: str) -> set[str]:
    return _own(module) | _named(module)


def _in(module: str, *folders: str) -> bool:
    return any(module == folder or module.startswith(folder + ".") for folder in folders)


def _room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _arrows(imports=_own_or_named):
    return [(source, target) for source in MODULES for target in sorted(imports(source))]


@pytest.mark.parametrize("folder", [*ONLY, *ONLY_FROM, *NEVER, *WITHOUT])
def test_the_rules_name_what_exists(folder):
    assert any(_in(module, folder) for module in MODULES)


def test_the_folders_are_a_fixed_list():
    found = {path.name for path in (ROOT / "dare_job").iterdir() if any(path.rglob("*.py"))}
    assert (found | ROOT_FILES) - {"__init__"} == ROOMS.keys() - {""}


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_imports_only(name):
    room = f"dare_job.{name}".rstrip(".")
    allowed = {room, *ROOMS[name], *(["pools"] if name in WITH_POOLS else [])}
    assert [arrow for arrow in _arrows() if _room(arrow[0]) == room
            and _room(arrow[1]) not in allowed and not _in(arrow[1], *allowed & {"pools"})] == []


def test_only_few_files_import_by_name():
    found = {module for module in MODULES for node in ast.walk(_tree(module))
             if {getattr(node, "id", ""), getattr(node, "attr", ""), getattr(node, "name", "")} & IMPORTERS}
    assert found == set(BY_NAME)


@pytest.mark.parametrize("folder", ONLY)
def test_a_folder_imports_only(folder):
    allowed = (folder, *ONLY[folder])
    assert [arrow for arrow in _arrows() if _in(arrow[0], folder)
            and not _in(arrow[1], *allowed)] == []


@pytest.mark.parametrize("folder", ONLY_FROM)
def test_a_folder_is_imported_only_from(folder):
    allowed = (folder, *ONLY_FROM[folder])
    assert [arrow for arrow in _arrows() if _in(arrow[1], folder) and not _in(arrow[0], *allowed)] == []


@pytest.mark.parametrize("folder", NEVER)
def test_a_folder_never_imports(folder):
    assert [arrow for arrow in _arrows() if _in(arrow[0], folder) and _in(arrow[1], *NEVER[folder])] == []


@pytest.mark.parametrize("folder", WITHOUT)
def test_a_folder_does_without_packages(folder):
    assert [arrow for arrow in _arrows(_imports)
            if _in(arrow[0], folder) and _in(arrow[1], *WITHOUT[folder])] == []


def test_sampling_mathematics_needs_numpy_torch_and_numba_alone():
    allowed = ("dare_job", "numpy", "torch", "numba", *sys.stdlib_module_names)
    files = [f"dare_job.decode.sampling.{name}" for name in MATHEMATICS]
    assert [arrow for arrow in _arrows(_imports) if arrow[0] in files and not _in(arrow[1], *allowed)] == []


@pytest.mark.parametrize(("folder", "other", "files"), PARTS)
def test_a_folder_takes_few_files_of_another(folder, other, files):
    used = {target for source, target in _arrows()
            if _in(source, f"dare_job.{folder}") and _in(target, f"dare_job.{other}")}
    assert used == {f"dare_job.{other}.{name}" for name in files}


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
    assert _circle({"a": {"b"}, "b": {"a"}}) != ""
    assert _circle({module: _own_or_named(module) for module in MODULES}) == ""


def test_only_the_admitted_pairs_of_folders_import_each_other():
    arrows = {(_room(source), _room(target)) for source, target in _arrows()}
    pairs, graph = {f"dare_job.{name}": " and ".join(pair) for pair in MUTUAL for name in pair}, {}
    for source, target in arrows:
        ends = pairs.get(source, source), pairs.get(target, target)
        graph.setdefault(ends[0], set()).update({ends[1]} - {ends[0]})
    assert _circle(graph) == ""
    for a, b in MUTUAL:
        assert {(f"dare_job.{a}", f"dare_job.{b}"), (f"dare_job.{b}", f"dare_job.{a}")} <= arrows


def test_there_are_seven_root_files():
    assert {path.stem for path in (ROOT / "dare_job").glob("*.py")} == ROOT_FILES


def test_a_run_reaches_every_file_of_decode():
    reached, todo = set(), ["dare_job.pipeline", *(name for name in MODULES if _in(name, "dare_job.stages"))]
    while todo:
        module = todo.pop()
        if module not in reached:
            reached.add(module)
            todo += _own(module)
    assert [module for module, path in MODULES.items() if _in(module, "dare_job.decode")
            and module not in reached and not (path.name == "__init__.py" and _is_docstring(path))] == []


def _is_docstring(path: Path) -> bool:
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
               for node in ast.parse(path.read_text()).body)


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
