"""More failed rows than the limit allows: code 3, the commonest errors, and nothing is published."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fault_nights import NIGHT, TOO_LONG, last_line, published, require_whole, rows

from dare_job.schemas import ENTITIES, KNOWLEDGE

pytestmark = [pytest.mark.spark, pytest.mark.release]


def test_over_the_limit_nothing_is_published_and_below_it_no_text_is_written_again(
        finished, folders, dare_job):
    options, out = finished
    for entity in ENTITIES:
        shutil.rmtree(out / "knowledge" / f"entity={entity}" / f"dt={NIGHT}")
    before = published(out)
    code, said = dare_job("run", *options, "--from", "gate", "--set", "limits.max_error_share=0.05")
    assert code == 3, said
    line = last_line(said)
    assert "limits.max_error_share = 0.05" in line and f"Most common errors: {len(TOO_LONG)} x " in line
    assert "nothing was published" in line and published(out) == before
    assert not list((out / "knowledge").glob(f"*/dt={NIGHT}"))
    code, said = dare_job("run", *options, "--from", "generate")
    assert code == 0, said
    require_whole(out, folders.undisturbed)
    found = {entity: rows(out, entity) for entity in ENTITIES}
    assert {name for name, row in found["item"].items() if row["error"]} == set(TOO_LONG)
    written = {row["source_run_id"] for entity in ENTITIES for row in found[entity].values()
               if row["generated_dt"] == NIGHT}
    assert written == {f"run-{NIGHT}"}, "texts were written twice"


def test_the_ten_commonest_of_more_errors_are_told(finished, dare_job):
    options, out = finished
    kinds = [f"the engine met trouble of kind {letter}" for letter in "abcdefghijkl"]
    folder, changed = out / "_work" / f"dt={NIGHT}" / "generate", 0
    for path in sorted(folder.glob("entity=*/part-*")):
        found = pq.read_table(path).to_pylist()
        broken = [row | {"error": kinds[(changed + n) % len(kinds)]} for n, row in enumerate(found)]
        changed += len(found)
        pq.write_table(pa.Table.from_pylist(broken, schema=KNOWLEDGE), path)
    assert changed >= len(kinds)
    code, said = dare_job("run", "--from", "gate", "--to", "gate", *options)
    assert code == 3 and last_line(said).count("trouble of kind") == 10, said
