"""The sweep over architectures: small configurations, processes that end, and one model of each family."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import transformers as hf
from sweep_behaviour import behave
from transformers import CONFIG_MAPPING
from typer.testing import CliRunner

from dare_job.bench.cli import app
from dare_job.bench.sweep import attempt, models, page, sweep
from dare_job.bench.sweep.shrink import CONTEXT, VOCABULARY, shrink
from dare_job.bench.sweep.sweep import Options
from dare_job.errors import ConfigError

# One of each family that decodes in trees.
FAMILIES = ("llama", "qwen3", "qwen3_moe", "mistral3", "gemma3", "gemma3n_text",
            "gemma4_text (shared layers)", "phi3", "gpt_oss", "deepseek_v3", "glm4_moe", "cohere2", "olmo2",
            "exaone4", "minimax_m2", "smollm3", "granitemoehybrid (attention only)",
            "llama4_text (chunks shorter than the texts)", "ernie4_5_moe", "qwen2_5_vl", "internvl", "bert",
            "bloom", "deepseek_v32")


@pytest.mark.parametrize("name", ["qwen3_next", "gemma4_text", "deepseek_v3", "qwen2_vl", "dots3_note_text"])
def test_configurations_keep_their_kinds_of_layers(name):
    whole, small = CONFIG_MAPPING[name]().get_text_config(), models.config(name).get_text_config()
    assert set(getattr(small, "layer_types", None) or ()) == set(getattr(whole, "layer_types", None) or ())
    assert small.num_hidden_layers < whole.num_hidden_layers and small.hidden_size == 64
    assert small.vocab_size == VOCABULARY and small.max_position_embeddings == CONTEXT


def test_sizes_are_recognized_by_name_and_what_is_no_size_stays():
    small = shrink({
        "num_hidden_layers": 30, "layer_types": ["a", "a", "b", *"ab" * 13, "b"],
        "intermediate_size": [9000] * 30,
        "kept_layers": [0, 2, 17], "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": None, "vocab_size": 32000, "sliding_window": None, "embedding_multiplier": 12,
        "use_cache": True, "hidden_size_per_layer_input": 0, "eos_token_id": 31999,
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5,
                            "mrope_section": [16, 24, 24]}})
    assert small["layer_types"] == ["a", "a", "b"] and small["intermediate_size"] == [48] * 3
    assert small["num_hidden_layers"] == 3 and small["kept_layers"] == [0, 2]
    assert (small["hidden_size"], small["num_attention_heads"], small["num_key_value_heads"]) == (64, 4, 2)
    assert small["head_dim"] == 16 and small["sliding_window"] is None and small["embedding_multiplier"] == 12
    assert small["use_cache"] is True and small["hidden_size_per_layer_input"] == 0
    assert small["rope_parameters"]["mrope_section"] == [2, 1, 1]


def test_tiny_models_do_not_repeat_one_token():
    model = models.tiny("llama")
    text = attempt._generate(model, attempt._prompts()[0])
    assert len(text) == attempt.NEW_TOKENS and len(set(text.tolist())) > 10


@pytest.mark.release
def test_processes_that_die_hang_or_raise_are_crashes_and_the_others_go_on():
    names = ["first", "dies", "raises", "hangs", "last"]
    rows = list(sweep.isolated(behave, names, 15, 2))
    assert [row["outcome"] for row in rows] == ["tree", "crash", "crash", "crash", "tree"]
    assert "code 3" in rows[1]["reason"] and "of the model's code" in rows[2]["reason"]
    assert "not finished" in rows[3]["reason"] and [row["name"] for row in rows] == names


def test_a_model_with_an_encoder_of_timm():
    pytest.importorskip("timm", reason="needs the packages pillow, timm and torchvision")
    assert attempt.attempt("perception_lm")["outcome"] == "tree"


def test_a_wrong_text_is_found(monkeypatch):
    right = attempt._generate
    monkeypatch.setattr(attempt, "_generate", lambda model, prompt: np.roll(right(model, prompt), 1))
    outcome = attempt.attempt("llama")
    assert outcome["outcome"] == "wrong" and "without drafts: text 0" in outcome["reason"]


def test_a_refused_model_that_generate_cannot_run_either_has_no_text(monkeypatch):
    def fails(*_):
        raise ValueError("pixel_values are missing")

    monkeypatch.setattr(attempt, "_generate", fails)
    outcome = attempt.attempt("bert (encoder)")
    assert outcome["outcome"] == "no_text" and outcome["reason"] == "ValueError: pixel_values are missing"


@pytest.mark.release
def test_the_command_ends_with_its_figures_and_writes_the_page(tmp_path):
    file = tmp_path / "models.md"
    done = CliRunner().invoke(app, ["sweep", "--only", "bert", "--page", str(file), "--seconds", "200"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["transformers"] == hf.__version__ and result["counts"] == {"tree": 1, "refused": 1}
    drafted, refused = result["models"]
    assert drafted["accepted_per_step"] >= 1 and drafted["steps"] < drafted["undrafted_steps"]
    text = file.read_text(encoding="utf-8")
    assert "| drafted, in trees | 1 |" in text and "`bert (encoder)`" in text and hf.__version__ in text
    with pytest.raises(ConfigError, match="--only vit: transformers .* has no causal language model of this"):
        Options(only=("vit",))


def test_the_page_has_every_outcome_of_the_sweep():
    rows = [{"name": f"m{i}", "class": None, "outcome": outcome, "reason": "a_b | c"}
            for i, outcome in enumerate(page._OUTCOMES)]
    text = page.text(rows, "5.0", 15)
    assert all(f"`m{i}`" in text for i in range(len(rows))) and "a\\_b \\| c" in text


@pytest.mark.release
def test_no_architecture_is_decoded_wrong():
    """Takes half an hour."""
    done = subprocess.run([sys.executable, "-m", "dare_job.bench", "sweep"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    counts, drafted = result["counts"], [m for m in result["models"] if m["outcome"] in ("tree", "chain")]
    assert not {"wrong", "crash"} & set(counts)
    assert len(drafted) >= 200 and counts["refused"] <= 15
    assert not [m for m in drafted if m["accepted_per_step"] < 1 or m["steps"] >= m["undrafted_steps"]]


@pytest.mark.release
@pytest.mark.parametrize("name", FAMILIES)
def test_one_model_of_each_family(name):
    outcome = attempt.attempt(name)
    assert outcome["outcome"] == "tree", outcome
    assert outcome["accepted_per_step"] >= 1 and outcome["steps"] < outcome["undrafted_steps"]


def test_the_page_of_the_repository_has_the_architectures_of_its_transformers():
    """With another version of transformers the page's own head says which one it is about."""
    text = (Path(__file__).parents[1] / "docs/reference/models.md").read_text(encoding="utf-8")
    version = re.search(r"in transformers ([0-9.]+)\. Each", text)[1]
    assert text.startswith(page._HEAD.format(version=version, changed=attempt.CHANGED))
    if version != hf.__version__:
        pytest.skip(f"the page is about transformers {version}")
    assert sorted(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)) == sorted(models.names())
