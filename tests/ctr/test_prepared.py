"""A folder of `dare-job data prepare` as the clicks of a CTR check: what does not fit together is named."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ctr_tables import source

from dare_job.data.paper.conversion import CTR
from dare_job.errors import DataError
from dare_job.evaluate.ctr import source as sources
from dare_job.schemas import INTERACTIONS, ITEMS, USERS


def _write(table, schema, path):
    pq.write_table(pa.Table.from_pandas(table, schema, preserve_index=False), path)


@pytest.fixture
def prepared(tmp_path):
    """90 rows, of which 20 are in no part; a click is a 5."""
    made = source(rows=90)
    rows = made.interactions.assign(rating=made.interactions["label"] + 4)
    rows["label"] = rows["label"].astype("int8")
    (tmp_path / "ctr").mkdir()
    for name, part in (("train", rows[20:60]), ("valid", rows[60:75]), ("test", rows[75:])):
        _write(part, CTR, tmp_path / f"ctr/{name}.parquet")
    for name, table, schema in (("interactions", rows, INTERACTIONS), ("users", made.users, USERS),
                                ("items", made.items, ITEMS)):
        _write(table, schema, tmp_path / f"{name}.parquet")
    (tmp_path / "_manifest.json").write_text(json.dumps({"options": {"positive": 5.0}}))
    return tmp_path


def test_rows_of_no_part_are_history(prepared):
    rows = sources.load(str(prepared), min_rating=4).interactions
    assert rows["split"].fillna("history").value_counts().to_dict() == {
        "train": 40, "history": 20, "valid": 15, "test": 15}
    assert ((rows["rating"] == 5) == rows["label"]).all() and 0 < rows["label"].sum() < 90


@pytest.mark.parametrize("file, says", [
    ("_manifest.json", "does not have the rating of a click"), ("ctr/valid.parquet", "cannot be read"),
    ("items.parquet", "cannot be read")])
def test_a_missing_or_damaged_file_is_named(prepared, file, says):
    (prepared / file).write_text("no")
    with pytest.raises(DataError, match=f"{file} {says}"):
        sources.load(str(prepared), min_rating=4)


def test_labels_of_other_interactions_are_refused(prepared):
    path = prepared / "interactions.parquet"
    pq.write_table(pq.read_table(path)[:80], path)
    with pytest.raises(DataError, match="ctr: some of its rows are not in interactions.parquet"):
        sources.load(str(prepared), min_rating=4)
