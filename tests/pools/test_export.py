"""Pools for other engines: every text is there in their form, and one that is installed drafts from it."""

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pandas
import pytest
from transformers import AutoTokenizer
from typer.testing import CliRunner

from dare_job import Pool
from dare_job.cli import app
from dare_job.errors import ConfigError, PoolError
from dare_job.models import embedded_path
from pools.export import texts, write
from pools.index import Index

ROOT = Path(__file__).parents[2]
TEXTS = {"drama": ["Silent Harbor is a grainy drama film.", "Golden Robot is joyful.\nSee \"it\"."],
         "comedy": ["Clumsy Pilgrim é uma comédia."]}
PEER = os.environ.get("DARE_VLLM_PYTHON")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pools")
    for name, group in TEXTS.items():
        Pool.from_texts(group, model="embedded").save(folder / name)
    return folder


def run(*arguments) -> dict:
    done = CliRunner().invoke(app, ["pools", "export", *map(str, arguments)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout.splitlines()[-1])


def test_texts_of_an_index_come_back_in_order():
    built = [np.array([7, 3, 7], np.int32), np.array([70_000], np.int32), np.array([3, 3], np.int32)]
    assert [ids.tolist() for ids in texts(Index.build(built))] == [ids.tolist() for ids in built]
    assert list(texts(Index.build([]))) == []
    many = Index.build([np.arange(70_000, dtype=np.int32)])  # codes of 32 bits
    assert np.array_equal(next(texts(many)), np.arange(70_000))


def test_sglang_reads_strings_that_have_the_tokens_of_the_pool(folder, tmp_path):
    """As its source does: a JSON string in each line, tokenized without special tokens."""
    result = run(folder, "--format", "sglang", "--model", "embedded", "--save", tmp_path / "out")
    assert result["format"] == "sglang" and set(result["pools"]) == set(TEXTS)
    tokenizer = AutoTokenizer.from_pretrained(embedded_path())
    for name, written in result["pools"].items():
        lines = Path(written["file"]).read_text(encoding="utf-8").splitlines()
        read = [json.loads(line) for line in lines]
        assert read == TEXTS[name] and written["texts"] == len(read)
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in read]
        stored = [text.tolist() for text in texts(Index.open(folder / name))]
        assert [[*each, tokenizer.eos_token_id] for each in ids] == stored
        assert written["tokens"] == sum(map(len, stored))
    assert not list((tmp_path / "out").glob(".*"))


def test_one_pool_as_responses(folder, tmp_path):
    result = run(folder / "drama", "--format", "arctic", "--save", tmp_path)
    lines = (tmp_path / "drama.jsonl").read_text(encoding="utf-8").splitlines()
    stored = [text.tolist() for text in texts(Index.open(folder / "drama"))]
    assert [json.loads(line) for line in lines] == [{"prompt": [], "response": ids} for ids in stored]
    assert list(result["pools"]) == ["drama"]
    table = pandas.read_json(tmp_path / "drama.jsonl", lines=True)  # as ArcticInference's simulator reads it
    assert all(isinstance(cell, list) for cell in [*table["prompt"], *table["response"]])


def test_what_cannot_be_exported(folder, tmp_path):
    with pytest.raises(PoolError, match="holds no pool: name the folder of one"):
        run(tmp_path, "--format", "arctic", "--save", tmp_path)
    with pytest.raises(ConfigError, match="name the model whose tokenizer made it with --model"):
        run(folder, "--format", "sglang", "--save", tmp_path)
    Index.build([np.arange(3)]).save(tmp_path / "other", {"tokenizer": "0"})
    with pytest.raises(PoolError, match="other has tokenizer 0, but the model has"):
        run(tmp_path / "other", "--format", "sglang", "--model", "embedded", "--save", tmp_path)
    with pytest.raises(Exception, match="format 'x' is unknown: use one of arctic, vllm, sglang"):
        write(Index.build([]), tmp_path / "x", "x")
    with pytest.raises(Exception, match="it needs the tokenizer of the pool's model"):
        write(Index.build([]), tmp_path / "x", "sglang")


READ_BACK = """
import json, sys
from types import SimpleNamespace
import numpy as np
from arctic_inference.suffix_decoding import SuffixDecodingCache

file = sys.argv[1]
cache = SuffixDecodingCache(max_tree_depth=24)
fill(cache, file)
fill_each_cache(file)
settings = SimpleNamespace(num_speculative_tokens=8, suffix_decoding_max_tree_depth=24,
                           suffix_decoding_max_cached_requests=100, suffix_decoding_max_spec_factor=8.0,
                           suffix_decoding_min_token_prob=0.1)
proposer = SuffixDecodingProposer(SimpleNamespace(speculative_config=settings,
                                                  model_config=SimpleNamespace(max_model_len=64)))
drafted = []
for response in map(json.loads, sys.argv[2:]):
    for each in (cache, proposer.suffix_cache):
        known = np.array(response[:4], np.int32)
        each.start_request("new", known)
        draft = each.speculate("new", known, max_spec_tokens=8, max_spec_factor=8.0).token_ids
        drafted.append(len(draft) > 3 and list(draft) == list(response[4:4 + len(draft)]))
        each.stop_request("new")
print(json.dumps(drafted))
"""


@pytest.mark.release
@pytest.mark.skipif(not PEER, reason="DARE_VLLM_PYTHON names no interpreter with vLLM and arctic-inference")
def test_vllm_and_arctic_draft_from_it(folder, tmp_path):
    run(folder / "drama", "--format", "vllm", "--save", tmp_path)
    page = (ROOT / "docs" / "how-to" / "export-pools.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    stored = [json.dumps(ids.tolist()) for ids in texts(Index.open(folder / "drama"))]
    done = subprocess.run([PEER, "-c", "\n".join([*blocks, READ_BACK]), tmp_path / "drama.jsonl", *stored],
                          capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [True] * 4  # two texts in two caches
