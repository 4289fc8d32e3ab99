"""README and documents: one page, links that lead somewhere, reference pages that say what the code says."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dare_job import errors

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_readme_is_one_page_with_both_set_up_commands_at_its_top():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert {"make demo", "make test"} <= {line.partition("#")[0].strip() for line in lines[:30]}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file = page.parent / target if target else page
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            assert anchor in _anchors(file), f"{target}#{anchor}"


def test_every_page_of_the_documents_is_reached_from_the_readme():
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
        waiting += [(page.parent / link).resolve() for link in links if "://" not in link]
    assert not set(PAGES) - reached


def test_reference_pages_are_what_the_code_says_now():
    path = ROOT / "docs" / "reference" / "generate.py"
    spec = importlib.util.spec_from_file_location("generate_reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, text in module.pages().items():
        assert (path.parent / name).read_text(encoding="utf-8") == text, \
            f"docs/reference/{name} is out of date: python docs/reference/generate.py"


def test_every_column_of_the_tables_has_an_arrow_type_and_a_meaning():
    text = (ROOT / "docs" / "reference" / "tables.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.+?)` \| (.*?) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) > 50
    for column, kind, meaning in rows:
        known = re.fullmatch(r"[a-z]+\d*|(list|map|fixed_size_list)<[^()]+>(\[dim\])?", kind)
        assert known, f"{column}: {kind}"
        assert meaning, column


def _anchors(file: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _called(call: ast.AST) -> str:
    return ast.unparse(call.func if isinstance(call, ast.Call) else call).split(".")[-1]


def _commands(tree: ast.Module) -> set[str]:
    """Functions whose docstring is the help of a command: decorated as one, or given to what makes one."""
    makers = {"command", "callback", "takes"}
    decorated = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
                 and makers & {_called(decorator) for decorator in node.decorator_list}}
    return decorated | {name.id for call in ast.walk(tree) if isinstance(call, ast.Call)
                        and (ast.unparse(call.func) == "typer.run"
                             or isinstance(call.func, ast.Call) and _called(call.func) in makers)
                        for name in call.args if isinstance(name, ast.Name)}


def _public(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _public(node.body)
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node


def _raised(node: ast.AST) -> Iterator[str]:
    """Names of the classes of errors that a function's own body raises, without functions inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise) and child.exc:
            yield _called(child.exc)
        if not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield from _raised(child)


def _without_raises(source: str) -> list[str]:
    ours = {name for name, kind in vars(errors).items()
            if isinstance(kind, type) and issubclass(kind, errors.DareJobError)}
    tree = ast.parse(source)
    commands = _commands(tree)
    return [node.name for node in _public(tree.body) if node.name not in commands
            and ours & set(_raised(node)) and "Raises\n------" not in (ast.get_docstring(node) or "")]


def test_a_public_function_that_raises_an_error_of_the_project_documents_it():
    raising = 'def f():\n    """F.{}"""\n    if x:\n        raise errors.DataError("x")\n'
    assert _without_raises(raising.format("")) == ["f"]
    assert _without_raises("@takes(Options)\n" + raising.format("")) == []
    assert _without_raises(raising.format("\n\n    Raises\n    ------\n    DataError\n    ")) == []
    assert {str(path): names for path in sorted((ROOT / "dare_job").rglob("*.py"))
            if (names := _without_raises(path.read_text(encoding="utf-8")))} == {}
