"""``dare-job lab acceptance``: rates and optima by brute force, trees, and rejected options."""

import itertools
import json
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from acceptance_models import TEXTS, last, run
from sampling_pairs import exact_output, linear_program_optimum
from transformers import AutoModelForCausalLM, AutoTokenizer

from dare_job.decode.sampling.distributions import DISTRIBUTIONS, enumerate_candidates
from dare_job.decode.sampling.verify import Verifier
from dare_job.errors import ConfigError, DataError
from dare_job.evaluate.acceptance import measure, report
from dare_job.evaluate.acceptance.report import draw_chart
from dare_job.evaluate.acceptance.trees import SparseShape

TEMPERATURES, DRAFTS = (0.3, 1.0), (1, 2, 3)


@pytest.fixture(scope="module")
def chart(tmp_path_factory):
    return tmp_path_factory.mktemp("chart") / "rates.svg"


@pytest.fixture(scope="module")
def found(models, texts, chart):
    return last("--model", models / "target", "--draft", models / "draft", "--text", texts,
                "--temperature", "0.3,1", "--drafts", "1..3", "--positions", 1000, "--plot", chart)


@pytest.fixture(scope="module")
def places(models):
    """Return p and q of each token of the texts at each temperature, by forward passes."""
    tokenizer = AutoTokenizer.from_pretrained(models / "target")
    logits = []
    for name in ("target", "draft"):
        model, parts = AutoModelForCausalLM.from_pretrained(models / name), []
        for prompt, text in TEXTS:
            before = tokenizer(prompt, add_special_tokens=False)["input_ids"] if prompt else [0]
            ids = [*before, *tokenizer(text, add_special_tokens=False)["input_ids"], 1]
            with torch.inference_mode():
                parts.append(model(torch.tensor([ids])).logits[0, len(before) - 1 : -1])
        logits.append(torch.cat(parts))
    return {t: [torch.softmax(each / t, -1) for each in logits] for t in TEMPERATURES}


@pytest.mark.slow
def test_every_rule_and_distribution_occurs_once(found):
    ways = [tuple(row[name] for name in ("distribution", "verifier", "drafts", "temperature"))
            for row in found["rows"]]
    expected = {(law, rule, n, t) for law, n, t in itertools.product(DISTRIBUTIONS, DRAFTS, TEMPERATURES)
                if DISTRIBUTIONS[law].count in (None, n) for rule in measure.verifiers(law, n)}
    assert len(ways) == len(expected) and set(ways) == expected
    assert {("distinct", "rrs", 2, 1.0), ("without_replacement", "greedy", 3, 0.3), ("iid", "k_seq", 2, 1.0),
            ("spechub", "spechub", 2, 1.0), ("iid", "speculative", 1, 1.0)} <= expected
    assert found["positions"] == sum(len(text.split()) + 1 for _, text in TEXTS) and found["texts"] == 3


@pytest.mark.slow
def test_rates_equal_enumeration(found, places):
    for row in found["rows"]:
        verifier = Verifier(row["verifier"], row["distribution"], row["drafts"])
        both = zip(*places[row["temperature"]], strict=True)
        expected = np.mean([exact_output(verifier, p, q)[1] for p, q in both])
        assert row["rate"] == pytest.approx(expected, abs=2e-6) and row["exact"]


@pytest.mark.slow
def test_optima_equal_a_linear_program_and_bound_the_rates(found, places):
    known = {}
    for row in found["rows"]:
        way = row["distribution"], row["drafts"], row["temperature"]
        if way not in known:
            both = zip(*places[way[2]], strict=True)
            known[way] = np.mean(
                [
                    linear_program_optimum(p, *enumerate_candidates(DISTRIBUTIONS[way[0]], q, way[1]))
                    for p, q in both
                ]
            )
        assert row["optimum"] == pytest.approx(known[way], abs=2e-6)
        assert row["rate"] <= row["optimum"] + 1e-9
        assert row["gap"] == pytest.approx(row["optimum"] - row["rate"], abs=1e-12)
        usual = next(one["rate"] for one in found["rows"] if one["distribution"] == "without_replacement"
                     and one["verifier"] == "rrs" and (one["drafts"], one["temperature"]) == way[1:])
        assert row["over_rrs"] == pytest.approx(row["rate"] - usual, abs=1e-12)
        low, high = row["rate_interval"]
        assert low <= row["rate"] <= high


@pytest.mark.slow
def test_the_plot_has_a_panel_for_each_series(found, chart):
    page = ElementTree.parse(chart).getroot()
    words = [one.text for one in page.iter() if one.tag.endswith("text")]
    assert sum(word.startswith("Acceptance rate:") for word in words) == len(DRAFTS) + len(TEMPERATURES)
    assert words.count("iid: priority") == words.count("greedy: optimum") == len(DRAFTS) + len(TEMPERATURES)
    assert (
        draw_chart([row for row in found["rows"] if (row["drafts"], row["temperature"]) == (1, 1.0)]) is None
    )


@pytest.mark.slow
def test_equal_models_accept_everything(models, texts):
    """Except unsampled tokens under "top_k", the rule naive, and tokens below the leaves of a tree."""
    same = last("--model", models / "target", "--draft", models / "target", "--text", texts,
                "--temperature", "0,1", "--drafts", 2, "--trees", "2x2,2x1:3", "--tree-rows", 3,
                "--new-tokens", 7)
    for row in same["rows"]:
        full = row["distribution"] != "top_k" and row["verifier"] in ("rrs", row["distribution"])
        if row["temperature"] == 0 or full and row["distribution"] != "distinct":
            assert row["rate"] == pytest.approx(1, abs=1e-6)
        elif row["distribution"] == "top_k" or row["verifier"] == "naive":
            assert row["rate"] < 0.99
    sure = [row for row in same["trees"] if row["distribution"] in ("iid", "without_replacement")]
    assert {row["tree"] for row in sure} == {"2x2", "2x1:3"}
    for row in sure:
        assert row["node_rate"] == (None if row["rule"] == "traversal" else 1)
        plainest = next(one for one in same["trees"] if (one["tree"], one["temperature"]) == (
            row["tree"], row["temperature"]))
        assert row["delta"] == pytest.approx((1 + row["accepted"]) / (1 + plainest["accepted"]))
        if row["tree"] == "2x2":
            assert row["accepted"] == 2 and row["steps"] == 6
        else:  # one of two nodes has a child
            assert 1 <= row["accepted"] < 2 or row["temperature"] == 0


def test_mean_of_dependent_places():
    """Independent places have the textbook standard error; duplicating each place in its text leaves it
    unchanged.
    """
    x = np.array([0.1, 0.9, 0.4, 0.7])
    expected = pytest.approx((x.mean(), x.std(ddof=1) / 2))
    assert measure.mean(x, [0, 1, 2, 3]) == expected
    assert measure.mean(np.repeat(x, 2), np.repeat([5, 1, 2, 3], 2)) == expected
    assert measure.mean(x, [4, 4, 4, 4]) == expected


@pytest.mark.parametrize(("option", "value", "message"), [
    ("--drafts", "0", "each must be from 1 to 8"), ("--drafts", "1..9", "each must be from 1 to 8"),
    ("--drafts", "two", "not a list of numbers"), ("--drafts", "4..2", "each must be from 1 to 8"),
    ("--temperature", "-1", "each must be 0 .greedy. or"), ("--temperature", "hot", "not a list of numbers"),
    ("--temperature", "nan", "each must be 0"), ("--trees", "2x0", "not a list of widths"),
    ("--plot", "rates.svg", "needs several temperatures"),
    ("--trees", "2x2:7", "from 2 to 6"), ("--trees", "2x2:1", "from 2 to 6")])
def test_invalid_options(models, texts, option, value, message):
    done = run("--model", models / "target", "--draft", models / "draft", "--text", texts, option, value)
    assert isinstance(done.exception, ConfigError)
    with pytest.raises(ConfigError, match=message):
        raise done.exception


def test_another_tokenizer_is_rejected_before_models_are_loaded(models, texts, monkeypatch):
    monkeypatch.setattr(report.Target, "load", lambda *_: pytest.fail("a model was loaded"))
    done = run("--model", models / "target", "--draft", models / "other", "--text", texts)
    assert isinstance(done.exception, ConfigError) and "has another vocabulary than" in str(done.exception)


@pytest.mark.parametrize(
    ("lines", "more", "message"),
    [
        (None, (), "cannot be read"),
        ("", (), "has no rows"),
        ('{"knowledge": ""}', (), "has no text"),
        ('{"knowledge', (), "cannot be read"),
        ('{"plain": "a"}', (), "has no column knowledge: use one of plain"),
        ('{"knowledge": "a"}', ("--prompt-column", "asked"), "has no column asked"),
        (
            json.dumps({"knowledge": "a", "prompt": "b " * 300}),
            (),
            "every prompt fills the context of 256 tokens",
        ),
    ],
)
def test_invalid_texts(models, tmp_path, lines, more, message):
    path = tmp_path / "texts.jsonl"
    if lines is not None:
        path.write_text(lines)
    done = run("--model", models / "target", "--draft", models / "draft", "--text", path, *more)
    assert isinstance(done.exception, DataError) and message in str(done.exception), done.exception


def test_sparse_tree():
    tree = SparseShape.parse("4x2x1x1x1:30")
    assert (tree.shape.nodes, tree.nodes, str(tree)) == (36, 30, "4x2x1x1x1:30")
    assert str(SparseShape.parse("2x2")) == "2x2" and SparseShape.parse("2x2").nodes == 6
