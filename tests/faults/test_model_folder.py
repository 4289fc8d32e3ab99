"""A model folder that lacks a file, and a tokenizer that is not yesterday's."""

import json
import shutil

import pytest
from fault_nights import BEFORE, NIGHT, configured, last_line, published, require_whole, rows
from transformers import AutoModelForCausalLM, AutoTokenizer

from dare_job.models import embedded_path
from dare_job.schemas import ENTITIES

pytestmark = pytest.mark.spark


@pytest.fixture
def model(tmp_path):
    """A copy of the embedded model."""
    return shutil.copytree(embedded_path(), tmp_path / "model")


def with_other_ids(model) -> None:
    """Let two common words of the tokenizer change places: the same ids now mean other words."""
    file = model / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    words = content["model"]["vocab"]
    words["Ġthe"], words["Ġof"] = words["Ġof"], words["Ġthe"]
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def test_a_missing_shard_is_named_before_anything_is_made(night, folders, model, tmp_path, dare_job):
    _, out = night
    AutoModelForCausalLM.from_pretrained(model).save_pretrained(model, max_shard_size="3MB")
    (model / "model.safetensors").unlink()
    shards = sorted(model.glob("model-*.safetensors"))
    assert len(shards) > 2
    away = shards[1].rename(tmp_path / "away")
    options, before = configured(tmp_path, folders.world, out, model={"name": str(model)}), published(out)
    code, said = dare_job("run", *options)
    assert code == 6 and f"lacks {shards[1].name}" in last_line(said), said
    assert not list((out / "_work" / f"dt={NIGHT}").glob("[!l]*")) and published(out) == before
    away.rename(shards[1])
    assert dare_job("run", *options)[0] == 0
    require_whole(out, folders.undisturbed)
    assert published(out) == before


def test_texts_of_another_tokenizer_are_written_anew_and_their_ids_never_used(
        night, folders, model, tmp_path, dare_job):
    _, out = night
    old = {entity: rows(out, entity, BEFORE) for entity in ENTITIES}
    before = published(out)
    with_other_ids(model)
    options = configured(tmp_path, folders.world, out, model={"name": str(model)})
    code, said = dare_job("run", *options, "--limit", "5")
    assert code == 0 and "written with another tokenizer" in said, said
    decode = AutoTokenizer.from_pretrained(model).decode
    for entity in ENTITIES:
        found = rows(out, entity)
        tonight = [row for row in found.values() if row["generated_dt"] == NIGHT]
        carried = [row for row in found.values() if row["generated_dt"] == BEFORE]
        assert len(tonight) == 5 and len(tonight) + len(carried) == len(old[entity])
        assert all(decode(row["token_ids"], skip_special_tokens=True) == row["knowledge"] for row in tonight)
        assert all(row["token_ids"] is None and row["knowledge"] == old[entity][row["entity_id"]]["knowledge"]
                   for row in carried)
    assert published(out) == before


def test_a_tokenizer_that_changes_between_two_stages_is_refused(night, folders, model, tmp_path, dare_job):
    _, out = night
    options = configured(tmp_path, folders.world, out, model={"name": str(model)})
    for stage in ("plan", "embed", "group", "route", "pools"):
        assert dare_job("run", "--from", stage, "--to", stage, *options)[0] == 0
    with_other_ids(model)
    code, said = dare_job("run", "--from", "generate", "--to", "generate", *options)
    assert code == 4 and "is another than" in last_line(said), said
    assert "dare-job run --from plan" in last_line(said), said
    assert not (out / "_work" / f"dt={NIGHT}" / "generate").exists()
