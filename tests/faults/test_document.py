"""The table of faults names tests that are there."""

import re

from fault_nights import ROOT

TEXT = (ROOT / "docs" / "explanation" / "faults.md").read_text(encoding="utf-8")


def test_each_fault_names_a_test_that_is_there():
    lines = [line for line in TEXT.splitlines() if line.startswith("| ") and "---" not in line]
    faults = [line for line in lines if not line.startswith("| fault |")]
    assert len(faults) > 20
    for line in faults:
        named = re.findall(r"`(tests/[\w/]+\.py)`", line.rpartition("|")[0].rpartition("|")[2])
        assert named and all((ROOT / path).is_file() for path in named), line


def test_each_file_of_faults_is_named():
    files = {f"tests/faults/{path.name}" for path in (ROOT / "tests" / "faults").glob("test_*.py")}
    assert files - set(re.findall(r"`(tests/[\w/]+\.py)`", TEXT)) == {"tests/faults/test_document.py"}
