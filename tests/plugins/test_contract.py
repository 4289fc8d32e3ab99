"""The contract's tests: dare-job's own methods and the page's pass, wrong ones fail where they are wrong."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dare_job.verifiers import corrections

ROOT = Path(__file__).parents[2]
OWN = """
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine.draft_budget import AdaptiveBudget
from pools.draft import DraftSettings


class Retrieval(RetrievalDrafter):
    def __init__(self):
        super().__init__(DraftSettings())


class Budget(AdaptiveBudget):
    pass
"""
WRONG = """
import numpy as np
import torch
from dare_job import DraftBatch, NodeVerification


class Drafter:
    def draft(self, requests, context, lengths, budgets, depths, min_score=0.0):
        return DraftBatch.of([self.row(*row) for row in zip(context, lengths, budgets, depths)])


class TooDeep(Drafter):
    def row(self, text, length, budget, depth):
        return text[:length][:budget]


class OverBudget(Drafter):
    def row(self, text, length, budget, depth):
        return [5]


class ReadsAhead(Drafter):
    def row(self, text, length, budget, depth):
        return [text[length] if length < len(text) else 5][: min(budget, depth)]


class OfTheBatch(Drafter):
    def draft(self, requests, context, lengths, budgets, depths, min_score=0.0):
        return DraftBatch.of([[len(lengths) + 4][: min(b, d)] for b, d in zip(budgets, depths)])


class Random(Drafter):
    def row(self, text, length, budget, depth):
        return np.random.default_rng().integers(4, 60, min(budget, depth))


class Crashes(Drafter):
    def row(self, text, length, budget, depth):
        return [text[length - 2]][: min(budget, depth)] if length > 1 else 1 / 0


class Ascending(Drafter):
    def draft(self, requests, context, lengths, budgets, depths, min_score=0.0):
        drafts = DraftBatch.of([[5, 6][: min(b, d)] for b, d in zip(budgets, depths)])
        return drafts._replace(scores=np.tile(np.float32([0.4, 0.9])[: drafts.nodes], (drafts.rows, 1)))


class Lies:
    lossless = True

    def __init__(self, eos):
        pass

    def __call__(self, scores, tree, context):
        return NodeVerification(context.argmax, torch.ones(len(tree), dtype=torch.bool))


class Alone(Lies):
    lossless = False

    def __call__(self, scores, tree, context):
        return NodeVerification(context.argmax, torch.full((len(tree),), len(tree.starts) == 2))


class Writes(Lies):
    lossless = False

    def __call__(self, scores, tree, context):
        scores[:] = 0
        return super().__call__(scores, tree, context)


class Keeps:
    row_nodes = 4

    def __init__(self, curve, nodes, round_up):
        pass

    def min_score(self, rows):
        return 0.0

    def select(self, drafts, draft_ms):
        return drafts._replace(sizes=drafts.sizes + 1)

    def observe(self, tree, result):
        pass

    def record_step(self, rows, nodes, ms):
        pass
"""

MISTAKES = {  # class, its kind, and the test that it fails
    "TooDeep": ("drafter", "test_trees_are_valid_and_within_budget_and_depth"),
    "OverBudget": ("drafter", "test_budgets_of_zero_and_single_tokens_are_no_error"),
    "ReadsAhead": ("drafter", "test_what_follows_the_known_tokens_is_not_read"),
    "OfTheBatch": ("drafter", "test_a_row_does_not_depend_on_its_batch"),
    "Random": ("drafter", "test_the_same_calls_give_the_same_trees"),
    "Crashes": ("drafter", "test_budgets_of_zero_and_single_tokens_are_no_error"),
    "Ascending": ("drafter", "test_scores_descend_and_keep_to_the_minimum"),
    "Lies": ("verifier", "test_a_lossless_verifier_accepts_only_the_argmax"),
    "Alone": ("verifier", "test_texts_do_not_depend_on_the_batch"),
    "Writes": ("verifier", "test_results_have_their_shapes_whatever_the_trees"),
    "Keeps": ("draft-budget", "test_it_keeps_some_of_the_first_nodes")}


def contract(folder: Path, *options: str) -> subprocess.CompletedProcess:
    """Run the contract's tests with the modules of a folder, as where dare-job is not installed."""
    command = [sys.executable, "-m", "pytest", "-p", "dare_job.contract.options", "-p", "no:cacheprovider",
               "-q", "-rfE", "--tb=no", "--pyargs", "dare_job.contract", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
                               "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})


def test_own_methods_and_those_of_the_page_pass(page, module, tmp_path):
    module("own", OWN)
    done = contract(tmp_path, "--drafter", "own:Retrieval", "--drafter", "my_methods:Lookup",
                    "--drafter", "my_methods:Lookup(context=1)", "--verifier", "my_methods:Close",
                    "--draft-budget", "own:Budget")
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 100


def test_the_verifiers_of_other_papers_pass(tmp_path):
    before = [-1] * corrections.MAX_CONTEXT
    learned = {(*before, token, other): (2, 2) for token in range(30) for other in range(30)}
    corrections.save(tmp_path / "memory.npz", learned)
    memory = f"dare_job.verifiers:Corrections(memory='{tmp_path}/memory.npz', context=0)"
    done = contract(tmp_path, *[part for name in ("Mars(theta=0.5)", "Fly(entropy=0, window=1)") for part in (
        "--verifier", f"dare_job.verifiers:{name}")], "--verifier", memory)
    assert done.returncode == 0, done.stdout


def test_each_mistake_fails_the_test_about_it(module, tmp_path):
    module("wrong", WRONG)
    options = [part for name, (kind, _) in MISTAKES.items() for part in (f"--{kind}", f"wrong:{name}")]
    done = contract(tmp_path, *options)
    failed = re.findall(r"^(?:FAILED|ERROR) .*$", done.stdout, re.MULTILINE)
    for name, (_, test) in MISTAKES.items():
        assert any(test in line and f"wrong:{name}" in line for line in failed), (name, failed)


def test_without_a_name_it_says_what_to_name(tmp_path):
    done = contract(tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "name what to test: --drafter, --verifier or --draft-budget" in done.stderr
