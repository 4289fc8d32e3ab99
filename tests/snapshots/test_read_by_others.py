"""DuckDB, Polars, pandas, pyarrow, Spark and Hive open the output with the lines of read-the-output.md."""

import json
import re
import shutil
import subprocess
import sys
from glob import glob
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from small_dates import publish

from dare_job import schemas
from dare_job.publish.features import clusters, ids
from dare_job.schemas import ENTITIES, KNOWLEDGE
from dare_job.storage import atomic_folder
from dare_job.tables.published import parquet_files
from dare_job.workspace import MANIFEST, write_json

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to" / "read-the-output.md").read_text("utf-8").partition("## Train on")[0]
DATE, TEXTS, FEATURES, ADDED = (
    dict(re.findall(r"^\| (\w[\w, ]*) \| `(.+?)` \|", table, re.MULTILINE))
    for table in re.findall(r"^\| reader \|.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE))
TYPE_OF_DT = dict(re.findall(r"^\| (\w[\w, ]*) \| `.+?` \| (.+) \|$", PAGE, re.MULTILINE))
OF_ALL, OF_A_DATE = ([pytest.param(name, marks=[pytest.mark.spark] if name == "Spark" else [])
                      for name in lines] for lines in (TEXTS, DATE))
OLD, DAY = "2026-01-01", "2026-01-02"
ROWS = 5
BOOKS = clusters.Codebooks((2, 2), (np.eye(2, 4, dtype=np.float32), np.eye(2, 4, dtype=np.float32)))


def text(number: int, day: str) -> dict:
    """A row of KNOWLEDGE with a value in every column but ``error``."""
    values = {pa.string(): f"{day} {number}", pa.int32(): number, pa.float32(): number / 2, pa.bool_(): True,
              pa.list_(pa.int32()): [70_000, number], pa.list_(pa.int16()): [1, number]}
    row = {field.name: values[field.type] for field in KNOWLEDGE}
    return row | {"entity_id": f"id {number}", "error": None}


def features_of(day: str) -> list[dict]:
    return [{"entity_id": f"id {number}", "id": number + 1, "vector": [number / 2, 0.25, 0.5, -1.0],
             "cluster_0": number % 2, "cluster_1": number % 2, "text_sha256": day} for number in range(ROWS)]


def candidates_of(day: str) -> list[dict]:
    return [{"user_id": "id 0", "rank": rank, "item_id": f"id {rank}", "score": -rank / 2, "source": "model",
             "target_forwards": 1, "accepted_steps": 0, "error": None, "run_id": day} for rank in (1, 2)]


def write(folder: Path, rows: list[dict], schema: pa.Schema) -> None:
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "part-0.parquet")
    write_json(folder / MANIFEST, {"files": {}})


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder with ``out/demo``: two dates of texts, features with codebooks and ids, recommendations."""
    out = tmp_path_factory.mktemp("readers") / "out" / "demo"
    for day in (OLD, DAY):
        publish(out, day, [text(number, day) for number in range(ROWS)], cut=3)
        for entity in ENTITIES:
            folder = out / "features" / f"entity={entity}" / f"dt={day}"
            write(folder, features_of(day), schemas.features(4, 2))
            clusters.write(folder / clusters.name(BOOKS), BOOKS)
        write(out / "candidates" / f"dt={day}", candidates_of(day), schemas.CANDIDATES)
    for entity in ENTITIES:
        ids.extended(out / "features" / "ids", entity, pa.array([f"id {number}" for number in range(ROWS)]))
    return out.parents[1]


@pytest.fixture
def copied(published, tmp_path):
    """A copy of the published output that a test may change."""
    shutil.copytree(published / "out", tmp_path / "out")
    return tmp_path


@pytest.fixture
def reading(request, monkeypatch):
    """Runs a line of the page in a folder; returns columns with their types, and rows."""
    def read(name: str, line: str, folder: Path) -> SimpleNamespace:
        names = {"pd": pd, "pq": pq, "ds": ds, "pa": pa, "glob": glob}
        if name == "Spark":
            names["spark"] = request.getfixturevalue("spark")
            line = line.replace('"out/', f'"{folder}/out/')  # Java keeps the folder that it was started in
        if name in ("DuckDB", "Polars"):
            short = {"DuckDB": "duckdb", "Polars": "pl"}[name]
            names[short] = pytest.importorskip(name.lower(), reason=f"{name} is not installed")
        monkeypatch.chdir(folder)
        return _found(eval(line, names))  # noqa: S307  the page is ours
    return read


def _found(result) -> SimpleNamespace:
    """Types by column, and rows, of what a reader returned."""
    if isinstance(result, pd.DataFrame):
        return _answer(dict(result.dtypes), result.to_dict("records"))
    if isinstance(result, ds.Dataset):
        result = result.to_table()
    if isinstance(result, pa.Table):
        return _answer({field.name: field.type for field in result.schema}, result.to_pylist())
    if hasattr(result, "lazy"):  # Polars
        frame = result.lazy().collect()
        return _answer(dict(frame.schema), frame.to_dicts())
    if hasattr(result, "toArrow"):  # Spark
        return _answer({field.name: field.dataType.simpleString() for field in result.schema},
                       result.toArrow().to_pylist())
    types = dict(zip(result.columns, result.types, strict=True))
    return _answer(types, [dict(zip(types, row, strict=True)) for row in result.fetchall()])


def _answer(types: dict, rows: list[dict]) -> SimpleNamespace:
    plain = [{key: list(map(float, value)) if isinstance(value, tuple | list | np.ndarray) else value
              for key, value in row.items()} for row in rows]
    for row in plain:
        row.update({key: str(row[key])[:10] for key in ("dt",) if key in row})
    return SimpleNamespace(types={key: str(kind).lower() for key, kind in types.items()}, rows=plain)


def assert_rows(found: SimpleNamespace, expected: list[dict]) -> None:
    """The columns of the expected rows have these values, in any order of rows. Null is None or NaN."""
    def plain(row: dict, names) -> tuple:
        values = [row[name] for name in names]
        return tuple(str([float(part) for part in value] if isinstance(value, list)
                         else float(value) if isinstance(value, int | float) and value == value
                         else None if value != value else value) for value in values)

    names = expected[0].keys()
    assert sorted(plain(row, names) for row in found.rows) == sorted(plain(row, names) for row in expected)


def in_all(rows_of, entities=ENTITIES, days=(OLD, DAY)) -> list[dict]:
    """Expected rows of a whole table, with the columns of its folders."""
    return [row | ({"entity": entity} if entity else {}) | {"dt": day}
            for entity in entities for day in days for row in rows_of(day)]


def texts_of(day: str) -> list[dict]:
    return [text(number, day) for number in range(ROWS)]


def test_every_reader_has_its_lines():
    assert set(TEXTS) == set(DATE) | {"pyarrow, lazily"} == set(TYPE_OF_DT)
    assert set(DATE) == set(FEATURES) == set(ADDED) == {"DuckDB", "Polars", "pandas", "pyarrow", "Spark"}


@pytest.mark.parametrize("name", OF_A_DATE)
def test_one_date(published, reading, name):
    line = DATE[name]
    assert_rows(reading(name, line, published), texts_of(DAY))
    line = line.replace("knowledge", "features")
    assert_rows(reading(name, line, published), features_of(DAY))
    line = line.replace("features/entity=user", "candidates")
    assert_rows(reading(name, line, published), candidates_of(DAY))


@pytest.mark.parametrize("name", OF_ALL)
def test_all_texts(published, reading, name):
    found = reading(name, TEXTS[name], published)
    assert_rows(found, in_all(texts_of))
    words = {"category of strings": "category", "dictionary of strings": "dictionary<values=string"}
    assert found.types["dt"].startswith(words.get(TYPE_OF_DT[name], TYPE_OF_DT[name]))


@pytest.mark.parametrize("name", OF_ALL)
def test_all_recommendations(published, reading, name):
    line = TEXTS[name].replace("knowledge", "candidates").replace("/entity=*", "")
    assert_rows(reading(name, line, published), in_all(candidates_of, entities=[None]))


@pytest.mark.parametrize("name", OF_A_DATE)
def test_all_features(published, reading, name):
    one = name in ("pandas", "pyarrow")
    expected = in_all(features_of, entities=[None] if one else ENTITIES)
    found = reading(name, FEATURES[name], published)
    assert_rows(found, expected)
    vector = {"DuckDB": "float[]", "Polars": "array(float32, shape=(4,))", "pandas": "object",
              "pyarrow": "fixed_size_list<element: float>[4]", "Spark": "array<float>"}
    assert found.types["vector"] == vector[name]


@pytest.mark.parametrize("name", OF_A_DATE)
def test_columns_that_a_new_version_added(copied, reading, name):
    """Older dates lack the column; the lines above lose it or stop, these give it."""
    for path in copied.glob(f"out/demo/knowledge/*/dt={OLD}/*.parquet"):
        table = pq.ParquetFile(path).read()
        pq.write_table(table.drop_columns("copied_words"), path)
    expected = [row | {"copied_words": None} if row["run_id"].startswith(OLD) else row
                for row in in_all(texts_of)]
    if name == "pandas":  # the folders are in its index
        expected = [{key: row[key] for key in KNOWLEDGE.names} for row in expected]
    assert_rows(reading(name, ADDED[name], copied), expected)
    if name == "Polars":
        with pytest.raises(Exception, match="extra column"):
            reading(name, TEXTS[name], copied)
    elif name != "Spark":  # it takes the columns of some file
        assert "copied_words" not in reading(name, TEXTS[name], copied).types


@pytest.mark.parametrize("name", OF_ALL)
def test_hidden_names_are_no_rows(copied, reading, name):
    """What a killed command leaves."""
    user = copied / "out/demo/knowledge/entity=user"
    for hidden in (f".dt={DAY}.0a1b2c3d.staging", f".dt={DAY}.retired", f".dt={DAY}.0a1b.removed"):
        shutil.copytree(user / f"dt={DAY}", user / hidden)
    part = user / f"dt={DAY}" / "part-00000.parquet"
    for hidden in (".part-9.parquet.0a1b2c3d4e5f.partial", "_removed.json"):
        shutil.copy(part, part.with_name(hidden))
    assert_rows(reading(name, TEXTS[name], copied), in_all(texts_of))
    if name in DATE:
        assert_rows(reading(name, DATE[name], copied), texts_of(DAY))


@pytest.mark.parametrize("copy", ["dt=2026-01-02.bak", "dt=2026-01-02_old"])
@pytest.mark.parametrize("name", OF_ALL)
def test_a_copy_counts_as_a_date_as_the_page_warns(copied, reading, name, copy):
    user = copied / "out/demo/knowledge/entity=user"
    shutil.copytree(user / f"dt={DAY}", user / copy)
    found = reading(name, TEXTS[name], copied)
    assert len(found.rows) == 5 * ROWS and "date" not in found.types["dt"]


@pytest.mark.parametrize("name", OF_ALL)
def test_a_date_without_rows(copied, reading, name):
    folder = copied / f"out/demo/knowledge/entity=user/dt={DAY}"
    for path in folder.glob("*.parquet"):
        path.unlink()
    pq.write_table(KNOWLEDGE.empty_table(), folder / "part-0.parquet")  # as the stage publish writes it
    assert len(reading(name, TEXTS[name], copied).rows) == 3 * ROWS
    if name in DATE:
        found = reading(name, DATE[name], copied)
        assert not found.rows and set(KNOWLEDGE.names) <= set(found.types)


@pytest.mark.parametrize("name", OF_ALL)
def test_while_a_date_is_replaced_its_rows_are_the_old_or_the_new_ones(copied, reading, name, monkeypatch):
    """Before the staged folder takes the place of the date, and while the old one waits to be deleted."""
    final, seen = copied / f"out/demo/knowledge/entity=user/dt={DAY}", []

    def runs() -> set[str]:
        found = [row for row in reading(name, TEXTS[name], copied).rows
                 if (row["entity"], row["dt"]) == ("user", DAY)]
        assert len(found) == ROWS
        return {row["run_id"] for row in found}

    staged = atomic_folder.stage_folder(final, flat=True)
    rows = [text(number, DAY) | {"run_id": "new"} for number in range(ROWS)]
    pq.write_table(pa.Table.from_pylist(rows, schema=KNOWLEDGE), staged / "part-new.parquet")
    write_json(staged / MANIFEST, {"files": {}})
    seen.append(runs())
    monkeypatch.setattr(atomic_folder, "time", SimpleNamespace(sleep=lambda _: seen.append(runs())))
    atomic_folder.publish({staged: final})
    assert seen[0] == {row["run_id"] for row in texts_of(DAY)} and seen[1:] == [{"new"}]
    assert runs() == {"new"}


def test_polars_needs_the_pattern_as_the_page_says(published, monkeypatch):
    polars = pytest.importorskip("polars", reason="Polars is not installed")
    monkeypatch.chdir(published)
    with pytest.raises(polars.exceptions.PolarsError, match="directory contained paths with different file"):
        polars.read_parquet(f"out/demo/knowledge/entity=user/dt={DAY}")


def _partitions(folder: Path, keys: tuple[str, ...]) -> list[tuple[dict, list[Path]]]:
    """Partitions by the rule of Hive and Trino: folders KEY=VALUE; names with _ or . in front are hidden."""
    if not keys:
        return [({}, sorted(path for path in folder.iterdir() if path.name[0] not in "._"))]
    return [({keys[0]: below.name.partition("=")[2]} | values, files)
            for below in sorted(folder.iterdir()) if below.name.startswith(f"{keys[0]}=")
            for values, files in _partitions(below, keys[1:])]


@pytest.mark.parametrize(("table", "rows_of"), [("knowledge", texts_of), ("features", features_of),
                                                ("candidates", candidates_of)])
def test_readers_by_the_rule_of_hive(published, table, rows_of):
    keys = ("dt",) if table == "candidates" else ("entity", "dt")
    rows = []
    for values, files in _partitions(published / "out/demo" / table, keys):
        assert files == parquet_files(files[0].parent), "a name that Hive reads and dare-job does not"
        rows += [row | values for path in files for row in pq.ParquetFile(path).read().to_pylist()]
    expected = in_all(rows_of, entities=[None] if table == "candidates" else ENTITIES)
    assert_rows(SimpleNamespace(rows=rows), expected)


DEFINITIONS = dict(re.findall(r"```sql\n(CREATE EXTERNAL TABLE (?P<name>\w+) .*?)\n```",
                              (DOCS / "reference" / "tables.md").read_text("utf-8"), re.DOTALL))
DEFINITIONS = {name: definition for definition, name in DEFINITIONS.items()}
SCHEMAS = {"knowledge": KNOWLEDGE, "features": schemas.features(4, 2), "candidates": schemas.CANDIDATES}


@pytest.mark.parametrize("table", SCHEMAS)
def test_a_definition_for_hive_has_the_columns_of_the_schema(table):
    columns = re.findall(r"^  (\w+) (\S+?),?$", DEFINITIONS[table], re.MULTILINE)
    expected = from_arrow_schema(SCHEMAS[table])
    assert columns == [(field.name, field.dataType.simpleString()) for field in expected]
    keys = "dt string" if table == "candidates" else "entity string, dt string"
    assert f"PARTITIONED BY ({keys})" in DEFINITIONS[table]


HIVE = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").enableHiveSupport().getOrCreate()
for statement in json.loads(sys.argv[1]):
    spark.sql(statement)
for query in json.loads(sys.argv[2]):
    print("ROWS", json.dumps(spark.sql(query).toArrow().to_pylist()))
"""
SETTINGS = {"spark.sql.hive.convertMetastoreParquet": "false", "spark.ui.enabled": "false",
            "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1",
            "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:memory:readers;create=true"}


@pytest.mark.spark
@pytest.mark.release
def test_hive_reads_the_tables_by_the_definitions(published, tmp_path):
    """Hive's own Parquet reader, in a Spark session with an empty metastore in memory."""
    add, = re.findall(r"```sql\n(ALTER TABLE knowledge .*?)\n```", PAGE, re.DOTALL)
    statements = [definition.replace("OUT/", f"{published}/out/demo/") for definition in DEFINITIONS.values()]
    statements += [add, add.replace("TABLE knowledge", "TABLE features"),
                   f"ALTER TABLE candidates ADD IF NOT EXISTS PARTITION (dt='{DAY}')"]
    conf = [part for key, value in SETTINGS.items() for part in ("--conf", f"{key}={value}")]
    (tmp_path / "hive.py").write_text(HIVE)
    queries = [f"SELECT * FROM {table} WHERE dt = '{DAY}'" for table in SCHEMAS]
    command = [Path(sys.executable).with_name("spark-submit"), *conf, "hive.py", json.dumps(statements),
               json.dumps(queries)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    answers = [json.loads(rows) for rows in re.findall(r"^ROWS (.*)$", done.stdout, re.MULTILINE)]
    assert len(answers) == len(SCHEMAS), done.stderr[-2000:]
    expected = {"knowledge": in_all(texts_of, days=[DAY]), "features": in_all(features_of, days=[DAY]),
                "candidates": in_all(candidates_of, entities=[None], days=[DAY])}
    for table, rows in zip(SCHEMAS, answers, strict=True):
        assert_rows(SimpleNamespace(rows=rows), expected[table])
