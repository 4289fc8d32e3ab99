"""Plug-ins in ``lab replay`` and ``lab decode``, and in the Python interface."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from dare_job import LLM
from dare_job.cli import app
from dare_job.config.plugins import PlugIn
from dare_job.errors import ConfigError
from dare_job.evaluate.replay.verified import Recorded

TITLES = ("Silent Harbor", "Golden Robot in Kyoto", "Broken Mirror", "Velvet Throne", "Wild Saint in Oslo",
          "Old Station")
PROMPTS = [("Describe this film by mood, theme and audience.\n"
            f"Title: {title}\ncountry: Italy\ndecade: 1980s\ngenre: drama\nDescription:\n")
           for title in TITLES]
WATCHFUL = """
from dare_job import DraftBatch


class Watchful:
    \"\"\"Drafts the next token of a row that repeats 5, 6, 7, and checks what it is given.\"\"\"

    def draft(self, requests, context, lengths, budgets, depths, min_score=0.0):
        request, known = requests[0], int(lengths[0])
        assert not context[0, known:].any() and known > 0 and len(request.prompt_ids) == 4
        assert len(request.pools) == 2 and len(request.previous_ids) == 9
        return DraftBatch.of([[5 + (int(context[0, known - 1]) - 4) % 3][: min(budgets[0], depths[0])]])
"""


def invoke(*arguments) -> dict:
    done = CliRunner().invoke(app, ["lab", *map(str, arguments), "--json"])
    assert not done.exit_code, done.stderr or done.exception
    return json.loads(done.stdout)


@pytest.fixture
def recorded(tmp_path):
    rows = [{"id": f"t{i}", "prompt": [5, 6, 7, 5], "text": [6, 7, 5, 6, 7, 5, 6, 7, 20 + i % 5]}
            for i in range(12)]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path / "texts.jsonl"


def replayed(file, *more) -> dict:
    return invoke("replay", "--text", file, "--id-column", "id", "--prompt-column", "prompt", "--held-out", 4,
                  "--nodes", 6, *more)


def test_replay_walks_a_drafter_beside_the_blend(recorded, page, module):
    module("watchful", WATCHFUL)
    found = replayed(recorded, "--drafter", "my_methods:Lookup", "--drafter", "my_methods:Lookup(context=3)",
                     "--drafter", "watchful:Watchful", "--old", recorded, "--pool", "own,global")
    assert list(found["drafters"]) == ["my_methods:Lookup", "my_methods:Lookup(context=3)",
                                       "watchful:Watchful"]
    lookup, longer, single = (found["drafters"][name]["nodes"]["6"] for name in found["drafters"])
    # prompt 5 6 7 5: the lookup of two tokens finds nothing at first, then all of a period
    assert single["accepted_per_step"] == 0.8 and single["steps"] == 4 * 5  # 2 2 2 2 1
    assert lookup["accepted_per_step"] >= 2 and lookup["steps"] < longer["steps"]
    assert lookup["ratio"] == pytest.approx(
        found["nodes"]["6"]["accepted_per_step"] / lookup["accepted_per_step"], abs=1e-3)


def test_a_smaller_pool_reaches_the_drafters(recorded, module):
    module("sees", SEES)
    rows = [json.loads(line) for line in recorded.read_text().splitlines()]
    recorded.write_text("\n".join(json.dumps({**row, "text": [30, 31, 32, 33]}) for row in rows))
    found = replayed(recorded, "--drafter", "sees:Sees", "--pool-texts", "0,8")
    whole = found["drafters"]["sees:Sees"]["nodes"]["6"]
    none, all_texts = (found["drafters"]["sees:Sees"]["pool_texts"][count]["6"] for count in ("0", "8"))
    assert none["accepted_per_step"] == 0 < whole["accepted_per_step"] == all_texts["accepted_per_step"]
    assert all_texts["ratio"] == pytest.approx(
        found["pool_texts"]["8"]["6"]["accepted_per_step"] / all_texts["accepted_per_step"], abs=1e-3)


SEES = """
from dare_job import DraftBatch
from pools.export import texts


class Sees:
    \"\"\"Drafts the first text of the shared pool, from the token that the row has reached.\"\"\"

    def draft(self, requests, context, lengths, budgets, depths, min_score=0.0):
        done = int(lengths[0]) - len(requests[0].prompt_ids)
        assert requests[0].pools[-1].kind == "global" and requests[0].pools[-1].texts in (0, 8)
        first = next(texts(requests[0].pools[-1]), [])
        return DraftBatch.of([first[done:][: min(budgets[0], depths[0])]])
"""


def test_replay_with_a_verifier_goes_by_the_recorded_text(recorded, module):
    module("rules", VERIFIERS)
    rows = [{"id": f"t{i}", "prompt": [5, 6, 7, 5], "text": [6, 7, 5, 20 + i, 7, 5, 6, 30 + i, 5, 6, 7, 8]}
            for i in range(12)]
    recorded.write_text("\n".join(map(json.dumps, rows)))
    found = replayed(recorded, "--verifier", "rules:Strict", "--verifier", "rules:Anything")
    strict, anything = (found["verifiers"][name]["nodes"]["6"] for name in ("rules:Strict", "rules:Anything"))
    alike = ("accepted_per_step", "tokens_per_step", "steps", "ci95")
    assert all(strict[name] == found["nodes"]["6"][name] for name in alike)
    assert anything["steps"] < strict["steps"] and anything["ratio"] < 1


VERIFIERS = """
import torch
from dare_job import NodeVerification


class Strict:
    lossless = True

    def __init__(self, eos):
        assert eos.shape == (0,)

    def __call__(self, scores, tree, context):
        return NodeVerification(context.argmax, tree.tokens == context.argmax[tree.parents])


class Anything(Strict):
    lossless = False

    def __call__(self, scores, tree, context):
        return NodeVerification(context.argmax, torch.ones(len(tree), dtype=torch.bool))


class FollowedByAMatch(Strict):
    \"\"\"Tolerates a token that is not the argmax if the draft token after it is.\"\"\"

    lossless = False

    def __call__(self, scores, tree, context):
        matches = tree.tokens == context.argmax[tree.parents]
        followed = torch.zeros_like(matches)
        followed[tree.parents[matches & (tree.depths > 0)]] = True
        return NodeVerification(context.argmax, matches | followed)
"""


def test_recorded_scores_let_a_verifier_tolerate_a_token_for_what_follows_it(module):
    module("rules", VERIFIERS)
    row = np.array([9, 5, 6, 7, 8], np.int32)
    tokens, parents = [5, 4, 7, 3, 8, 8], [-1, 0, 1, 0, 3, 2]  # 5 4 7 8, and 5 3 8

    def path(name: str, size: int = 5) -> list[int]:
        verifier = Recorded(PlugIn.parse("verifier", "--verifier", f"rules:{name}"), 10)
        return verifier(row[:size], 1, 0, tokens, parents)

    assert path("Strict") == [0] and path("FollowedByAMatch") == [0, 1, 2, 5]
    assert path("Anything", 3) == [0, 1]  # not beyond the text


@pytest.fixture(scope="module")
def texts():
    llm = LLM("embedded", decode={"batch_size": 3})
    return [completion.text for completion in llm.generate(PROMPTS, max_new_tokens=40, show_progress=False)]


@pytest.fixture
def prompts(tmp_path, texts):
    rows = [{"prompt": prompt, "previous": text if row % 2 else None}
            for row, (prompt, text) in enumerate(zip(PROMPTS, texts, strict=True))]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "earlier.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return tmp_path / "prompts.jsonl"


def test_decode_times_methods_of_ones_own_beside_the_built_in_ones(prompts, page):
    found = invoke("decode", "--model", "embedded", "--prompts", prompts, "--previous-column", "previous",
                   "--pool", prompts.parent / "earlier.jsonl", "--batch", "1,3", "--repeats", 1,
                   "--max-new-tokens", 24, "--set", "decode.nodes=8", "--set", "decode.score=always",
                   "--methods", "generate,lookup,autoregressive,prompt,dare,relaxed",
                   "--drafter", "my_methods:Lookup", "--verifier", "my_methods:Close(gap=99.0)")
    rows = {(row["method"], row["batch"]): row for row in found["rows"]}
    pair = "my_methods:Lookup + my_methods:Close(gap=99.0)"
    assert list(dict.fromkeys(name for name, _ in rows)) == [
        "generate", "lookup", "autoregressive", "prompt", "dare", "relaxed", "my_methods:Close(gap=99.0)",
        "my_methods:Lookup", pair]
    assert ("lookup", 3) not in rows and found["prompts"] == 6
    for name in ("generate", "autoregressive", "prompt", "dare", "my_methods:Lookup"):
        assert rows[name, 1]["rows_that_differ"] == rows[name, 3]["rows_that_differ"] == 0, name
    assert rows["generate", 3]["ratio"] == 1.0 and rows["autoregressive", 1]["accepted_per_step"] == 0
    assert rows["dare", 3]["accepted_per_step"] > 1 and rows["dare", 3]["reused_share"] > 0.2
    assert rows["prompt", 1]["reused_share"] == 0 < rows["my_methods:Lookup", 1]["reused_share"]
    assert rows["my_methods:Close(gap=99.0)", 1]["relaxed_share"] > 0
    assert all(row["slowest"] == row["tokens_per_s"] == row["fastest"] > 0 for row in rows.values())


def test_decode_reads_lines_and_token_ids(tmp_path, module):
    (tmp_path / "prompts.txt").write_text(PROMPTS[0].replace("\n", " ") + "\n\n" + "Hello\n")
    lines = invoke("decode", "--model", "embedded", "--prompts", tmp_path / "prompts.txt", "--batch", "2",
                   "--repeats", 1, "--max-new-tokens", 5, "--methods", "autoregressive")
    assert lines["prompts"] == 2 and lines["rows"][0]["batch"] == 2
    (tmp_path / "ids.jsonl").write_text(json.dumps({"prompt": [5, 6, 7]}))
    module("counts", COUNTS)
    ids = invoke("decode", "--model", "embedded", "--prompts", tmp_path / "ids.jsonl", "--batch", "1",
                 "--repeats", 2, "--max-new-tokens", 5, "--methods", "autoregressive,dare",
                 "--draft-budget", "counts:Counts")
    assert [row["method"] for row in ids["rows"]] == ["autoregressive", "dare", "counts:Counts"]
    assert ids["rows"][2]["rows_that_differ"] == 0


COUNTS = """
from dare_job.decode.engine.draft_budget import AdaptiveBudget


class Counts(AdaptiveBudget):
    def __init__(self, curve, nodes, round_up):
        assert curve.forward_ms(1, nodes).shape == (nodes + 1,)
        super().__init__(curve, nodes, round_up)
"""


@pytest.mark.parametrize(("arguments", "message"), [
    (("--methods", "fast"), "--methods 'fast': choose from generate, lookup"),
    (("--batch", "0"), "--batch 0: each must be at least 1"),
    (("--batch", "8", "--methods", "lookup"), "--methods lookup takes one row at a time: add 1 to --batch"),
    (("--drafter", "my_methods"), "drafter.plugin = 'my_methods' does not name a drafter"),
    (("--drafter", "no_such:C"), "drafter.plugin = 'no_such:C': importing no_such failed"),
    (("--prompt-column", "text"), "has no column text: use one of prompt"),
    (("--previous-column", "old"), "has no column old: use one of prompt")])
def test_decode_explains_what_is_wrong(prompts, arguments, message):
    done = CliRunner().invoke(app, ["lab", "decode", "--model", "embedded", "--prompts", str(prompts),
                                    *arguments])
    assert done.exit_code and message in str(done.exception), done.exception


def test_a_notebook_uses_plug_ins_by_their_settings(page, texts):
    llm = LLM("embedded", decode={"nodes": 8}, drafter={"plugin": "my_methods:Lookup"})
    found = llm.generate(PROMPTS, max_new_tokens=40, show_progress=False)
    assert [completion.text for completion in found] == texts
    assert sum(completion.accepted_tokens for completion in found) > 0
    loose = LLM("embedded", decode={"nodes": 8}, verify={"rule": "my_methods:Close(gap=99.0)"})
    previous = [text.replace(" and ", " or ") for text in texts]
    found = loose.generate(PROMPTS, previous, max_new_tokens=40, show_progress=False)
    assert sum(completion.relaxed_tokens for completion in found) > 0
    with pytest.raises(ConfigError, match="verify.rule = 'my_methods:Open': my_methods has no class Open"):
        LLM("embedded", verify={"rule": "my_methods:Open"})


def test_an_invalid_tree_ends_generation_with_the_class(module):
    module("wrong", "from dare_job import DraftBatch\n\n\nclass Wrong:\n    def draft(self, requests, *_):\n"
                    "        return DraftBatch.of([[10 ** 6]] * len(requests))\n")
    llm = LLM("embedded", decode={"nodes": 8}, drafter={"plugin": "wrong:Wrong"})
    with pytest.raises(ConfigError, match="^drafter Wrong: the tree of row 0 has token 1000000 in node 0"):
        llm.generate(PROMPTS[:1], max_new_tokens=8)

