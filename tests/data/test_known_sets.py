"""Ready-made mappings of public data sets: each set in miniature."""

import gzip
import json

import pytest
from public_sets import CASES as MAPPED
from reader_sets import CASES as OF_READERS

from dare_job.config.settings import InputSettings
from dare_job.data.input import known_sets, sample
from dare_job.data.input.source import detected, opened
from dare_job.data.input.table import MARKS
from dare_job.errors import DataError

CASES = MAPPED | OF_READERS
WITHOUT_ONE_FILE = [(name, file) for name, case in CASES.items()
                    for file in case.files if case.form in known_sets.known_sets()]


def put(folder, files):
    folder.mkdir()
    for name, lines in files.items():
        data = b"".join(_bytes(line) + b"\n" for line in lines)
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder


def _bytes(line):
    line = json.dumps(line) if isinstance(line, dict) else line
    return line if isinstance(line, bytes) else line.encode()


def read(table):
    """Valid rows, and problems by file and line."""
    rows, problems = [], {}
    for batch in sample.batches(table):
        for row in batch.to_pylist():
            if row["problem"]:
                problems[f"{row['source']}:{row['line']}"] = row["problem"]
            else:
                values = list(row.values())[:len(row) - len(MARKS)]
                rows.append(tuple(dict(value) if isinstance(value, list) else value for value in values))
    return rows, problems


def opened_tables(folder, into):
    """Name of the format, and rows and problems by table."""
    with opened(InputSettings(path=str(folder)), into) as source:
        return source.form, {name: read(table) for name, table in source.tables.items()}


@pytest.mark.parametrize("name", CASES)
def test_rows_and_problems_of_a_public_set(tmp_path, name):
    case = CASES[name]
    folder = put(tmp_path / "input", case.files)
    form, found = opened_tables(folder, tmp_path)
    rows = {"interactions": case.interactions, "items": case.items, "users": case.users}
    assert form == case.form
    assert {table: rows for table, (rows, _) in found.items()} == {
        table: expected for table, expected in rows.items() if expected is not None}
    assert {place: problem.replace(f"{folder}/", "") for _, problems in found.values()
            for place, problem in problems.items()} == case.problems


def test_every_ready_made_mapping_has_a_case():
    assert set(known_sets.known_sets()) <= {case.form for case in CASES.values()}


@pytest.mark.parametrize("name", CASES)
def test_no_other_mapping_fits_a_public_set(tmp_path, name):
    form = CASES[name].form
    folder = put(tmp_path / "input", CASES[name].files)
    fitting = [each for each, known in known_sets.known_sets().items() if known.fits(folder)]
    assert fitting == [form] * (form in known_sets.known_sets())
    assert known_sets.is_recbole(folder) == (form == "recbole")


@pytest.mark.parametrize(("name", "file"), WITHOUT_ONE_FILE)
def test_a_set_without_one_of_its_files_is_not_taken_for_another_one(tmp_path, name, file):
    case = CASES[name]
    folder = put(tmp_path / "input", {other: lines for other, lines in case.files.items() if other != file})
    similar = ["movielens"] if "ratings.csv" in case.files else []  # which then says what it lacks
    assert detected(folder) in [case.form, None, *similar]


@pytest.mark.parametrize("missing", ["movieId", "title", "genres"])
def test_movies_without_a_column_are_refused(tmp_path, missing):
    files = CASES["MovieLens latest"].files
    header = files["movies.csv"][0].replace(missing, "other")
    folder = put(tmp_path / "input", {**files, "movies.csv": [header, *files["movies.csv"][1:]]})
    with pytest.raises(DataError, match=f"movies.csv has no column {missing} .columns found: .*other"):
        opened_tables(folder, tmp_path)
