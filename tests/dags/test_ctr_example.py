"""What the example of CTR training reads of a published date."""

import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow_home import DAGS

sys.path.append(str(DAGS))

DATE = "2026-01-02"


def publish(out, entity: str, run_id: str, *texts: str | None) -> None:
    folder = out / "knowledge" / f"entity={entity}" / f"dt={DATE}"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"knowledge": pa.array(texts, pa.string())}), folder / f"{run_id}.parquet")
    (folder / "_manifest.json").write_text(json.dumps({"run_id": run_id, "files": {f"{run_id}.parquet": {}}}))


def test_rows_with_a_text_are_counted_of_one_run_and_of_the_files_that_it_names(tmp_path):
    from dare_ctr_example import rows

    publish(tmp_path, "user", "before", "no longer named")
    publish(tmp_path, "user", "run", "one", None, "two")
    publish(tmp_path, "item", "before", "old")
    with pytest.raises(RuntimeError, match="users and items of 2026-01-02 are from different runs"):
        rows(str(tmp_path), DATE)
    publish(tmp_path, "item", "run", "three")
    assert rows(str(tmp_path), DATE) == rows(f"file://{tmp_path}", DATE) == 3


def test_an_event_without_an_output_folder_says_what_to_set():
    from dare_ctr_example import rows

    with pytest.raises(ValueError, match=r"set params\.out in dare\.yaml"):
        rows(None, DATE)
