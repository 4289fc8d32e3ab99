"""More failed rows than the limit allows: code 3, the commonest errors, and nothing is published."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fault_nights import NIGHT, configured, last_line, published, rows

from dare_job.schemas import ENTITIES, KNOWLEDGE

pytestmark = pytest.mark.spark
TOO_LONG = 4  # titles of more tokens than the model reads


@pytest.fixture
def world(folders, tmp_path):
    """The world, with items whose prompts the model cannot read."""
    made = shutil.copytree(folders.world, tmp_path / "world")
    items = pq.read_table(made / "items.parquet")
    more = [{"item_id": f"z-long-{n}", "title": f"{'🦣' * (1000 + n)}", "attributes": []}
            for n in range(TOO_LONG)]
    pq.write_table(pa.concat_tables([items, pa.Table.from_pylist(more, schema=items.schema)]),
                   made / "items.parquet")
    return made


def test_over_the_limit_nothing_is_published_and_below_it_no_text_is_written_again(
        night, world, tmp_path, dare_job):
    _, out = night
    options, before = configured(tmp_path, world, out, limits={"max_error_share": 0.05}), published(out)
    code, said = dare_job("run", *options)
    assert code == 3, said
    line = last_line(said)
    assert "limits.max_error_share = 0.05" in line and f"Most common errors: {TOO_LONG} x " in line
    assert "nothing was published" in line and published(out) == before
    assert not list((out / "knowledge").glob(f"*/dt={NIGHT}"))
    first = {path.name for path in (out / "_work" / f"dt={NIGHT}" / "logs").glob("*.jsonl")}
    code, said = dare_job("run", *options, "--set", "limits.max_error_share=0.5")
    assert code == 0, said
    found = {entity: rows(out, entity) for entity in ENTITIES}
    failed = {name for name, row in found["item"].items() if row["error"]}
    assert failed == {f"z-long-{n}" for n in range(TOO_LONG)}
    written = [row["source_run_id"] for entity in ENTITIES for row in found[entity].values()
               if row["generated_dt"] == NIGHT]
    assert len(set(written)) == 1 and f"{written[0]}.jsonl" in first, "texts were written twice"


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
