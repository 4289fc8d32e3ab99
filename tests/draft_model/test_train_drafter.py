"""``dare-job drafter train`` on a few texts of the embedded model, published as a run publishes them."""

import hashlib
import json
import shutil
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoTokenizer
from typer.testing import CliRunner

from dare_job import prompts, schemas
from dare_job.bench.sampling.world import logits_of
from dare_job.cli import app
from dare_job.data.sample_world.simulate import simulate, user_examples
from dare_job.decode.draft.model import ModelDrafter
from dare_job.decode.draft.tokenizer_match import require_same_tokenizer
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.prompt.tokens import prompt_ids
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.errors import ConfigError, DataError
from dare_job.models import embedded_path
from dare_job.models.files import fingerprint, tokenizer_hash
from dare_job.publish import prompted_texts
from dare_job.publish.prompted_texts import Row
from dare_job.training.drafter import teacher
from dare_job.training.drafter.settings import Settings
from dare_job.training.drafter.train import divergence, network, train
from dare_job.workspace import MANIFEST

DT, ROWS, TOKENS = "2026-01-02", 28, 32
QUICK = ["--steps", "40", "--layers", "2", "--width", "64", "--heads", "2", "--batch-tokens", "1024",
         "--held-out", "4", "--kl", "0.5"]


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """An OUT with users' texts of one night, and their prompts in the plan; no items."""
    out, path = tmp_path_factory.mktemp("out"), embedded_path()
    tokenizer, target = AutoTokenizer.from_pretrained(path), Target.load(path)
    examples = islice(user_examples(simulate(60, 40, 5), prompts.load(prompts.SAMPLE), 20), ROWS)
    user_prompts = {f"u{i}": example.prompt for i, example in enumerate(examples)}
    engine = Engine(target, EngineSettings(max_new_tokens=TOKENS, nodes=0, score="never"))
    requests = [Request(name, prompt_ids(tokenizer, text)) for name, text in user_prompts.items()]
    texts = {result.id: result for result in engine.run(requests)}
    assert len(texts) == ROWS
    hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in user_prompts.items()}
    rows = [{"entity_id": name, "knowledge": tokenizer.decode(texts[name].token_ids),
             "token_ids": texts[name].token_ids.tolist(), "finish_reason": texts[name].finish_reason,
             "prompt_sha256": hashes[name], "run_id": "run-1"} for name in user_prompts]
    wrote = {"model": {"name": "embedded", "revision": None, "hash": fingerprint(path)}, "run_id": "run-1",
             "tokenizer": tokenizer_hash(path), "new_tokens": [0, TOKENS]}
    for entity, written in (("user", rows), ("item", [])):
        folder = out / "knowledge" / f"entity={entity}" / f"dt={DT}"
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(written, schemas.KNOWLEDGE), folder / "part-0.parquet")
        (folder / MANIFEST).write_text(json.dumps(wrote))
    plan = out / "_work" / f"dt={DT}" / "plan" / "entity=user"
    plan.mkdir(parents=True)
    planned = [{"entity_id": name, "prompt": prompt, "prompt_sha256": hashes[name], "stale": True,
                "strict": False, "interactions": 3} for name, prompt in user_prompts.items()]
    pq.write_table(pa.Table.from_pylist(planned, schemas.PLAN), plan / "part-0.parquet")
    return out, tokenizer, target


def _run(*arguments):
    return CliRunner().invoke(app, ["drafter", "train", *map(str, arguments)])


@pytest.fixture(scope="module")
def trained(published, tmp_path_factory):
    to = tmp_path_factory.mktemp("drafter") / "of-embedded"
    done = _run("--out", published[0], "--save", to, *QUICK)
    assert done.exit_code == 0, done.output
    return to, json.loads(done.stdout.splitlines()[-1])


def test_it_learns_and_says_of_what(trained):
    to, found = trained
    assert found == {"drafter": str(to), **json.loads((to / "drafter.json").read_text())}
    assert found["target"]["name"] == "embedded" and found["target"]["hash"] == fingerprint(embedded_path())
    assert found["texts"] | {"out": None} == {"out": None, "date": DT, "runs": ["run-1"], "rows": ROWS - 4,
                                              "with_prompt": ROWS - 4, "tokens": found["texts"]["tokens"]}
    assert found["before"]["rows"] == found["after"]["rows"] == 4
    assert found["after"]["first_choice"] > found["before"]["first_choice"] + 0.1
    assert [path.name for path in to.parent.iterdir()] == ["of-embedded"]


def test_the_engine_drafts_with_it(published, trained):
    _, tokenizer, target = published
    draft = Target.load(trained[0])
    require_same_tokenizer(tokenizer, AutoTokenizer.from_pretrained(trained[0]), draft.vocabulary)
    requests = [Request(i, prompt_ids(tokenizer, "Users who like"), max_new_tokens=20) for i in range(3)]
    plain, drafted = (
        {r.id: r.token_ids for r in Engine(target, EngineSettings(batch_size=2, nodes=nodes),
                                           ModelDrafter(draft, "2x1x1", target.vocabulary)).run(requests)}
        for nodes in (0, 6))
    assert all(np.array_equal(plain[i], drafted[i]) for i in range(3))


def test_texts_whose_prompts_are_gone_are_learned_without_them(published, tmp_path, job_log):
    out = tmp_path / "out"
    (out / "_work").mkdir(parents=True)
    (out / "knowledge").symlink_to(published[0] / "knowledge")
    done = _run("--out", out, "--save", tmp_path / "to", *QUICK, "--steps", "1")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["texts"]["with_prompt"] == 0 and found["after"] is None
    assert any("28 of 28 texts have no prompt" in line for line in job_log)


@pytest.mark.parametrize("options,error,message", [
    (["--steps", "0"], ConfigError, "--steps is 0; it must be at least 1"),
    (["--kl", "1.5"], ConfigError, "--kl is 1.5; it must be from 0"),
    (["--width", "65"], ConfigError, "--width 65 is not a multiple of 2 x --heads = 4"),
    (["--rate", "nan"], ConfigError, "--rate is nan"),
    (["--temperature", "0"], ConfigError, "--temperature is 0; it must be above 0"),
    (["--top-k", "0"], ConfigError, "--top-k is 0; it must be at least 1"),
    (["--context", "32"], DataError, "all texts of 2026-01-02 have --context 32 tokens or more"),
    (["--date", "2026-01-03"], DataError, "has no published user text of 2026-01-03; published: 2026-01-02"),
    (["--held-out", "25"], DataError, "has 3 texts of 2026-01-02 to train on .--held-out reserves 25"),
    (["--model", "/nowhere"], Exception, "model folder /nowhere does not exist"),
])
def test_invalid_options_are_errors(published, tmp_path, options, error, message):
    done = _run("--out", published[0], "--save", tmp_path / "to", *QUICK, "--steps", "1", *options)
    with pytest.raises(error, match=message):
        raise done.exception
    assert not (tmp_path / "to").exists()


def test_nothing_else_is_replaced_and_a_failed_run_leaves_what_was_there(published, trained, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    done = _run("--out", published[0], "--save", tmp_path / "mine", *QUICK)
    with pytest.raises(ConfigError, match="is not a draft model"):
        raise done.exception
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    before = (trained[0] / "drafter.json").read_text()
    done = _run("--out", published[0], "--save", trained[0], *QUICK, "--rate", "1", "--steps", "0")
    assert isinstance(done.exception, ConfigError)
    assert (trained[0] / "drafter.json").read_text() == before


@pytest.mark.slow
def test_training_texts_have_the_temperature(published):
    """A draft model trained at temperature 1.75 is nearer to the target there than one trained at 1."""
    _, tokenizer, target = published
    rows = [Row(str(n), prompt_ids(tokenizer, "The user liked").astype(np.int64), ids, True)
            for n, ids in enumerate(np.arange(5, 45).reshape(4, 10))]
    hot = teacher.teacher_rows(target, rows, 200, 1.75)
    logits = logits_of(target, rows[0]).float()
    shares = torch.softmax(logits / 1.75, -1).topk(200)
    assert (hot[0].tokens == shares.indices.numpy()).mean() > 0.99  # but for equal ones
    assert np.allclose(hot[0].shares, shares.values.numpy(), atol=1e-3)
    apart = {}
    for temperature in (1.0, 1.75):
        settings = Settings(width=32, heads=2, steps=20, batch_tokens=512, kl=1.0, temperature=temperature)
        model = network(tokenizer, target.vocabulary, 256, settings)
        train(model, teacher.teacher_rows(target, rows, 200, temperature), settings, "cpu")
        found = torch.cat([logits_of(Target(model), row) for row in rows]).float() / 1.75
        tokens, shares = (torch.from_numpy(np.concatenate([getattr(one, name) for one in hot]).astype(kind))
                          for name, kind in (("tokens", np.int64), ("shares", np.float32)))
        apart[temperature] = float(divergence(found, tokens, shares))
    assert apart[1.75] < apart[1.0]


def test_texts_that_loop_are_no_training_data(published, tmp_path):
    out, tokenizer, _ = published
    copied = tmp_path / "out"
    shutil.copytree(out, copied)
    file = copied / "knowledge" / "entity=user" / f"dt={DT}" / "part-0.parquet"
    rows = pq.read_table(file).to_pylist()
    rows[0]["finish_reason"], rows[1]["finish_reason"] = "loop", None
    pq.write_table(pa.Table.from_pylist(rows, schemas.KNOWLEDGE), file)
    source = prompted_texts.source(str(copied), DT)
    training, _ = prompted_texts.read(source, tokenizer, tokenizer_hash(embedded_path()), ROWS, 0, None)
    assert {row.name for row in training} == {f"user:{row['entity_id']}" for row in rows[1:]}


def test_divergence_is_kl_with_all_other_tokens_as_one():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 4, generator=generator)
    p = torch.softmax(torch.randn(5, 4, generator=generator), -1)
    whole = torch.nn.functional.kl_div(logits.log_softmax(-1), p, reduction="batchmean")
    top = p.topk(3)  # the fourth is all others
    assert divergence(logits, top.indices, top.values).item() == pytest.approx(whole.item(), abs=1e-5)
    unknown = top.values.clone()
    unknown[:3] = 0
    last = torch.nn.functional.kl_div(logits[3:].log_softmax(-1), p[3:], reduction="batchmean")
    assert divergence(logits, top.indices, unknown).item() == pytest.approx(last.item(), abs=1e-5)
