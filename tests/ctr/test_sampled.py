"""Sampled sets of a small date: seeded, read by ``ctr``, and refused where prompts or model are others."""

import hashlib
import json
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dare_job import prompts
from dare_job.bench.downstream import asked, sampled
from dare_job.config.settings import JobConfig
from dare_job.errors import DataError, ModelError
from dare_job.evaluate.ctr import knowledge
from dare_job.models import files
from dare_job.prompts.sets import HistoryItem
from dare_job.schemas import ENTITIES, KNOWLEDGE
from dare_job.workspace import MANIFEST, Workspace, write_json

DT = "2026-01-02"


@pytest.fixture
def out(tmp_path):
    """A published date of five users, the last without a text, and four items."""
    worded, space = prompts.load("sample"), Workspace(tmp_path / "out", date.fromisoformat(DT))
    history = [HistoryItem("Brave Valley"), HistoryItem("Faithful Echo"), HistoryItem("Gentle Kiss")]
    asked = {"user": {f"u{n}": worded.user({}, history[:1 + n % 3]) for n in range(4)} | {"u4": None},
             "item": {f"i{n}": worded.item(f"Crooked Kitchen {n}", {"genre": "drama"}) for n in range(4)}}
    for entity in ENTITIES:
        _publish(space, entity, asked[entity])
    return space.out


def _publish(space, entity, asked):
    rows = [dict.fromkeys(KNOWLEDGE.names) | {
        "entity_id": name, "run_id": "run", "generated_dt": prompt and DT, "knowledge": prompt and "old text",
        "error": None if prompt else "empty history",
        "prompt_sha256": prompt and hashlib.sha256(prompt.encode()).hexdigest()}
        for name, prompt in asked.items()]
    folder, plan = space.knowledge(entity), space.stage("plan") / f"entity={entity}"
    for made in (folder, plan):
        made.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, KNOWLEDGE), folder / "part-0.parquet")
    pq.write_table(pa.table({"entity_id": list(asked), "prompt": pa.array(asked.values(), pa.string())}),
                   plan / "part-0.parquet")
    model = {"name": "embedded", "revision": None, "dtype": "float32",
             "hash": files.fingerprint(files.resolve("embedded"))}
    write_json(folder / MANIFEST, {
        "date": DT, "entity": entity, "run_id": "run", "schema_version": 3, "fingerprint": entity,
        "settings": JobConfig().model_dump(mode="json"), "model": model, "tokenizer": "t", "prompts": {},
        "new_tokens": [0, 24]})


def write(out, into, **options):
    given = {"sets": 2, "temperature": 1.5, "seed": 0, "batch": 3, "limit": None, "date_": None} | options
    sampled.main(out=out, into=into, **given)


def texts(folder, entity="user"):
    table = pq.read_table(folder / "knowledge" / f"entity={entity}" / f"dt={DT}").to_pylist()
    return {row["entity_id"]: row for row in table}


def test_sets_differ_and_the_same_seed_writes_the_same(out, tmp_path):
    write(out, tmp_path / "a")
    write(out, tmp_path / "b", sets=1)
    first, second, again = (texts(tmp_path / name) for name in ("a/s1", "a/s2", "b/s1"))
    assert first == again and first.keys() == {f"u{n}" for n in range(5)}
    assert any(first[name]["knowledge"] != second[name]["knowledge"] for name in first)
    assert first["u4"]["knowledge"] is None and first["u4"]["error"] == "empty history"
    for row in list(first.values())[:4]:
        assert row["tokens"] == len(row["token_ids"]) <= 24
        assert row["finish_reason"] == ("length" if row["tokens"] == 24 else "eos")
        assert row["prompt_sha256"] == texts(out)[row["entity_id"]]["prompt_sha256"]
    manifest = json.loads((tmp_path / f"a/s1/knowledge/entity=item/dt={DT}" / MANIFEST).read_text())
    assert manifest["sampling"]["temperature"] == 1.5 and manifest["counts"]["written"] == 4


def test_ctr_reads_a_set_with_what_proves_its_prompts(out, tmp_path):
    write(out, tmp_path, sets=1)
    users, items = knowledge.read(tmp_path / "s1", None, list(ENTITIES), False,
                                  lambda found: (np.ones((len(found), 2), np.float32), None))
    assert users.ids == ["u0", "u1", "u2", "u3"] and users.missing == 1 and len(items.ids) == 4
    assert users.prompts["u1"] == texts(out)["u1"]["prompt_sha256"]
    assert users.settings["history"]["window"] == "recent"


def test_a_cold_text_is_nearly_the_greedy_one_whatever_the_seed(out, tmp_path):
    write(out, tmp_path, temperature=0.01)
    first, second = (texts(tmp_path / name, "item") for name in ("s1", "s2"))
    assert [row["knowledge"] for row in first.values()] == [row["knowledge"] for row in second.values()]


def test_a_set_is_written_once(out, tmp_path):
    write(out, tmp_path, sets=1, limit=1)
    file = next((tmp_path / "s1").rglob("part-0.parquet"))
    before = file.stat().st_mtime_ns
    write(out, tmp_path, sets=1, limit=1)
    assert file.stat().st_mtime_ns == before
    write(out, tmp_path, sets=1, limit=2)
    assert sum(row["knowledge"] is not None for row in texts(tmp_path / "s1").values()) == 2


def test_prompts_take_the_place_of_their_texts(out, tmp_path):
    asked.main(out=out, into=tmp_path / "asked")
    found = texts(tmp_path / "asked")
    assert "Faithful Echo" in found["u1"]["knowledge"] and found["u4"]["knowledge"] is None
    for name, row in found.items():
        said = row["knowledge"] and hashlib.sha256(row["knowledge"].encode()).hexdigest()
        assert said == row["prompt_sha256"] == texts(out)[name]["prompt_sha256"]
    assert len(texts(tmp_path / "asked", "item")) == 4


def other_prompt(out):
    path = out / f"_work/dt={DT}/plan/entity=item/part-0.parquet"
    table = pq.read_table(path).to_pylist()
    table[1]["prompt"] += "!"
    pq.write_table(pa.Table.from_pylist(table), path)


def no_plan(out):
    (out / f"_work/dt={DT}/plan/entity=user/part-0.parquet").unlink()


def other_model(out):
    path = out / f"knowledge/entity=user/dt={DT}" / MANIFEST
    path.write_text(path.read_text().replace('"hash": "', '"hash": "0'))


@pytest.mark.parametrize("change, error, message", [
    (other_prompt, DataError, "the text of 'i1' was written for another prompt"),
    (no_plan, DataError, "the prompts of 2026-01-02 are gone"),
    (other_model, ModelError, "model embedded has changed since the texts were written")])
def test_what_cannot_be_asked_again_is_refused(out, tmp_path, change, error, message):
    change(out)
    with pytest.raises(error, match=message):
        write(out, tmp_path, sets=1)
    assert not (tmp_path / "s1").exists()


def test_an_output_without_a_date_is_refused(tmp_path):
    with pytest.raises(DataError, match="no published date"):
        write(tmp_path, tmp_path / "into")
