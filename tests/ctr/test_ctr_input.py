"""Files split for CTR become an input of the job that has no interaction behind the train part."""

import pyarrow.parquet as pq
import pytest
from ctr_tables import source

from dare_job.bench import ctr_input
from dare_job.errors import ConfigError
from dare_job.schemas import INTERACTIONS, ITEMS


@pytest.fixture
def split_data(tmp_path):
    rows = source(rows=90).interactions.rename(columns={"user_id": "uid", "item_id": "iid"})
    rows["title"] = "Film, The (1999)"
    rows.loc[rows["iid"] == "i1", "title"] = "1984"
    folder = tmp_path / "data"
    folder.mkdir()
    for name, part in (("train", rows[:60]), ("valid", rows[60:75]), ("test", rows[75:])):
        part.to_csv(folder / f"{name}.csv.gz", index=False)
    return folder, rows


def test_the_job_gets_all_items_and_what_was_before_the_valid_part(split_data, tmp_path, capsys):
    folder, rows = split_data
    ctr_input.main(data=folder, save=tmp_path / "in")
    found = {name: pq.read_table(tmp_path / "in" / f"{name}.parquet")
             for name in ("interactions", "users", "items")}
    assert found["interactions"].schema.equals(INTERACTIONS) and found["items"].schema.equals(ITEMS)
    assert len(found["interactions"]) == 60
    assert max(found["interactions"]["timestamp"].to_pylist()) == rows["timestamp"][59]
    items = {row["item_id"]: row for row in found["items"].to_pylist()}
    assert items.keys() == set(rows["iid"]) and items["i1"]["attributes"] == []
    assert items["i2"]["title"] == "Film, The (1999)" and items["i2"]["attributes"] == [("year", "1999")]
    assert capsys.readouterr().out.strip() == '{"date": "2026-01-14"}'


def test_a_folder_that_is_there_stays_as_it_is(split_data, tmp_path):
    (tmp_path / "in").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        ctr_input.main(data=split_data[0], save=tmp_path / "in")
