"""A model folder that lacks a file, and a tokenizer that is not yesterday's."""

import json
import shutil

import pytest
from fault_nights import BEFORE, NIGHT, configured, last_line, published, rows, settings
from transformers import AutoModelForCausalLM, AutoTokenizer

from dare_job.generate import previous_text
from dare_job.models import embedded_path
from dare_job.schemas import ENTITIES

pytestmark = [pytest.mark.spark, pytest.mark.release]


@pytest.fixture
def model(tmp_path):
    """A copy of the embedded model, its weights in several files."""
    model = shutil.copytree(embedded_path(), tmp_path / "model")
    AutoModelForCausalLM.from_pretrained(model).save_pretrained(model, max_shard_size="3MB")
    (model / "model.safetensors").unlink()
    return model


def with_other_ids(model) -> None:
    """Let two common words of the tokenizer change places: the same ids now mean other words."""
    file = model / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    words = content["model"]["vocab"]
    words["Ġthe"], words["Ġof"] = words["Ġof"], words["Ġthe"]
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def test_a_missing_shard_is_named_before_anything_is_made_and_another_tokenizer_halts_the_next_stage(
        night, folders, model, tmp_path, dare_job):
    _, out = night
    work, before = out / "_work" / f"dt={NIGHT}", published(out)
    shards = sorted(model.glob("model-*.safetensors"))
    assert len(shards) > 2
    away = shards[1].rename(tmp_path / "away")
    options = configured(tmp_path, folders.world, out, model={"name": str(model)})
    code, said = dare_job("run", *options)
    assert code == 6 and f"lacks {shards[1].name}" in last_line(said), said
    assert not list(work.glob("[!l]*")) and published(out) == before
    away.rename(shards[1])
    assert dare_job("run", "--to", "plan", *options)[0] == 0
    with_other_ids(model)
    code, said = dare_job("run", "--from", "generate", "--to", "generate", *options)
    assert code == 4 and "has changed since" in last_line(said), said
    assert "dare-job run --from plan" in last_line(said), said
    assert not (work / "generate").exists()


def test_ids_of_another_tokenizer_are_made_anew_from_the_words(folders, model, job_in):
    tokenizers = [AutoTokenizer.from_pretrained(model)]
    with_other_ids(model)
    tokenizers.append(AutoTokenizer.from_pretrained(model))
    job = job_in(folders.before, settings(folders.world, folders.before, model={"name": str(model)}))
    found = previous_text.previous_token_ids(job, job.space.knowledge("item", BEFORE)).collect()
    texts = {name: row["knowledge"] for name, row in rows(folders.before, "item", BEFORE).items()}
    old, new = ({name: made(text, add_special_tokens=False)["input_ids"] + [made.eos_token_id]
                 for name, text in texts.items()} for made in tokenizers)
    assert {row.entity_id: row.token_ids for row in found} == new != old


@pytest.mark.release
def test_texts_of_another_tokenizer_are_written_anew_and_their_ids_never_used(
        night, folders, model, tmp_path, dare_job):
    _, out = night
    old = {entity: rows(out, entity, BEFORE) for entity in ENTITIES}
    before = published(out)
    with_other_ids(model)
    options = configured(tmp_path, folders.world, out, model={"name": str(model)})
    code, said = dare_job("run", *options, "--limit", "3")
    assert code == 0 and "generated with another tokenizer" in said, said
    decode = AutoTokenizer.from_pretrained(model).decode
    for entity in ENTITIES:
        found = rows(out, entity)
        tonight = [row for row in found.values() if row["generated_dt"] == NIGHT]
        carried = [row for row in found.values() if row["generated_dt"] == BEFORE]
        assert len(tonight) == 3 and len(tonight) + len(carried) == len(old[entity])
        assert all(decode(row["token_ids"], skip_special_tokens=True) == row["knowledge"] for row in tonight)
        assert all(row["token_ids"] is None and row["knowledge"] == old[entity][row["entity_id"]]["knowledge"]
                   for row in carried)
    assert published(out) == before
