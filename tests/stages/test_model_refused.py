"""An unsupported model ends a run in the plan, before input is read and weights are loaded."""

import json

import pytest
import transformers as hf

from dare_job.errors import ModelError
from dare_job.generate import preflight
from dare_job.stages import plan

SIZES = dict(vocab_size=40, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)


class ReadInput(Exception):
    """The plan went on to the input."""


@pytest.fixture
def planned(make_job, tmp_path, monkeypatch):
    """Runs the stage plan up to the input, with a model of this configuration and generation config."""
    def read(*args):
        raise ReadInput

    monkeypatch.setattr(plan, "prepare_input", read)

    def run(config: hf.PreTrainedConfig, generation: dict | None = None, **options):
        config.save_pretrained(tmp_path / "model")
        if generation is not None:
            (tmp_path / "model" / "generation_config.json").write_text(json.dumps(generation))
        plan.run(make_job({"model": {"name": str(tmp_path / "model")}, **options}))
    return run


@pytest.mark.parametrize("config, generation, message", [
    (hf.T5Config(vocab_size=40, d_model=8, d_ff=8, num_layers=1, num_heads=1), None, "not a causal language"),
    (hf.BertConfig(**SIZES), None, "BertLMHeadModel is not supported: its attention is not causal"),
    (hf.XLMConfig(vocab_size=40, emb_dim=8, n_layers=1, n_heads=1), None, "not causal; use a model that is"),
    (hf.LlamaConfig(**SIZES), {"num_beams": 4}, "generation_config.num_beams is 4"),
    (hf.LlamaConfig(**SIZES), {"stop_strings": ["x"]}, "set decode.stop to these strings")])
def test_a_model_is_refused_by_its_configuration(planned, config, generation, message):
    with pytest.raises(ModelError, match=f"model.name = .*model: .*{message}"):
        planned(config, generation)


@pytest.mark.parametrize("config", [
    hf.LlamaConfig(**SIZES), hf.MambaConfig(vocab_size=40, hidden_size=8, num_hidden_layers=1),
    hf.BloomConfig(vocab_size=40, hidden_size=8, n_layer=1, n_head=1),
    hf.CpmAntConfig(vocab_size=40, hidden_size=8, num_attention_heads=1, dim_head=8, dim_ff=8,
                    num_hidden_layers=1)], ids=lambda config: config.model_type)
def test_a_model_goes_on_to_the_input_with_drafts_or_without(planned, config):
    with pytest.raises(ReadInput):
        planned(config)


def test_a_setting_that_replaces_the_field_lifts_the_refusal(planned):
    wrong = {"repetition_penalty": "high"}
    with pytest.raises(ModelError, match="repetition_penalty is 'high'"):
        planned(hf.LlamaConfig(**SIZES), wrong)
    with pytest.raises(ReadInput):
        planned(hf.LlamaConfig(**SIZES), wrong, decode={"repetition_penalty": 1.1})


def test_packages_are_checked_where_the_workers_are_on_this_host(make_job, tmp_path, monkeypatch):
    from types import SimpleNamespace

    config = hf.LlamaConfig(**SIZES)
    config.quantization_config = {"quant_method": "awq", "bits": 4}
    config.save_pretrained(tmp_path / "model")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for master, refused in (("local[2]", True), ("yarn", False)):
        job = make_job({"model": {"name": str(tmp_path / "model")}})
        object.__setattr__(job, "spark", SimpleNamespace(sparkContext=SimpleNamespace(master=master)))
        if refused:
            with pytest.raises(ModelError, match=r"model.name = .*AWQ.*needs gptqmodel"):
                preflight.check_model(job)
        else:
            preflight.check_model(job)


def test_a_model_that_wrote_the_previous_texts_is_not_checked_again(make_job, monkeypatch):
    job = make_job({"model": {"name": "/nowhere"}}, model="hash")
    monkeypatch.setattr(type(job.space), "previous", lambda self, entity: "folder")
    monkeypatch.setattr(preflight.published, "read_manifest", lambda folder: {"model": {"hash": "hash"}})
    preflight.check_model(job)
    monkeypatch.setattr(preflight.published, "read_manifest", lambda folder: {"model": {"hash": "other"}})
    with pytest.raises(ModelError):
        preflight.check_model(job)
