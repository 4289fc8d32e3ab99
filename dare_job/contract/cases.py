"""Rows, trees and a small model for the contract's tests."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import Tree, build
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from pools.draft import DraftSettings
from pools.index import Index
from pools.tree import DraftBatch

VOCABULARY, NEW_TOKENS, END = 60, 48, 3


class Rows(NamedTuple):
    """The arguments of ``Drafter.draft`` for some rows, without ``min_score``."""

    requests: tuple[Request, ...]
    context: np.ndarray
    lengths: np.ndarray
    budgets: np.ndarray
    depths: np.ndarray

    def row(self, r: int) -> "Rows":
        """One row alone, without the padding that the others need."""
        return Rows(self.requests[r : r + 1], self.context[r : r + 1, : self.lengths[r]].copy(),
                    *(part[r : r + 1].copy() for part in self[2:]))


def rows(seed: int) -> Rows:
    """Seven rows: with and without pools, previous text, budget and depth; two of one token each."""
    rng = np.random.default_rng(seed)
    phrases = [rng.integers(4, VOCABULARY, size).astype(np.int32) for size in (3, 5, 8)]
    texts = [np.concatenate([phrases[place] for place in rng.integers(0, 3, count)])
             for count in (2, 5, 9, 4, 7)]
    texts += [np.array([7], np.int32), texts[0][:1]]
    shared, requests = Index.build([*texts[:3], np.concatenate(phrases)]), []
    for r, text in enumerate(texts):
        prompt = text[: 0 if r == 6 else max(1, len(text) // 2)]
        previous = texts[(r + 1) % 5] if r % 2 else None
        own = () if previous is None else (Index.build([previous], kind="own"),)
        requests.append(Request(f"row {r}", prompt, (*own, shared) if r < 4 else (), previous_ids=previous))
    context = np.zeros((7, max(map(len, texts)) + 5), np.int32)
    for r, text in enumerate(texts):
        context[r, : len(text)] = text
    lengths = np.array([len(text) for text in texts], np.int32)
    return Rows(tuple(requests), context, lengths, np.array([8, 1, 15, 0, 40, 6, 6], np.int32),
                np.array([6, 4, 12, 5, 2, 0, 3], np.int32))


class Trees(NamedTuple):
    """The arguments of ``Verifier`` for some rows, without ``argmax``."""

    scores: torch.Tensor
    tree: Tree
    tokens: np.ndarray
    lengths: np.ndarray
    prompts: np.ndarray


def trees(seed: int, drafts: Sequence[int] = (9, 0, 14, 3)) -> Trees:
    """Rows with so many draft nodes: siblings, chains and wrong tokens; some tokens are banned."""
    rng = np.random.default_rng(seed)
    lengths, prompts = rng.integers(4, 12, len(drafts)), np.full(len(drafts), 2)
    tokens = rng.integers(4, VOCABULARY, (len(drafts), 16)).astype(np.int32)
    nodes = [_nodes(rng, size) for size in drafts]
    batch = DraftBatch.of([[token for token, _ in row] for row in nodes],
                          [[parent for _, parent in row] for row in nodes])
    tree = build(tokens[np.arange(len(drafts)), lengths - 1], batch, np.full(len(drafts), 99))
    scores = torch.from_numpy(rng.normal(0, 3, (len(tree), VOCABULARY)).astype(np.float32))
    for node in range(len(tree)):  # half of the tokens are what the model wants, some others are close to it
        parent = int(tree.host[1][node])
        if parent != node and rng.random() < 0.7:
            scores[parent, tree.host[0][node]] = scores[parent].max() + float(rng.choice([0.5, -0.2, -1.0]))
    scores[rng.random(tuple(scores.shape)) < 0.05] = -torch.inf
    return Trees(scores, tree, tokens, lengths.astype(np.int64), prompts.astype(np.int64))


def _nodes(rng: np.random.Generator, size: int) -> list[tuple[int, int]]:
    """Tokens and parents of a random tree with distinct siblings; an end-of-text token among them."""
    nodes: list[tuple[int, int]] = []
    while len(nodes) < size:
        node = int(rng.choice([END, *range(4, VOCABULARY)])), int(rng.integers(-1, len(nodes)))
        nodes += [] if node in nodes else [node]
    return nodes


@lru_cache(maxsize=1)
def target() -> Target:
    """A model of two small layers whose texts repeat and vary. Texts end with the token END."""
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                         bos_token_id=None, eos_token_id=None, tie_word_embeddings=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight.normal_(0, 0.25)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = END, 0
    return Target(model, check=False)


@lru_cache(maxsize=1)
def prompts() -> tuple[np.ndarray, ...]:
    """Prompts of seven rows, the shortest of one token."""
    rng = np.random.default_rng(1)
    return tuple(rng.integers(4, VOCABULARY, size).astype(np.int32) for size in (5, 17, 1, 30, 9, 22, 11))


@lru_cache(maxsize=1)
def greedy_texts() -> tuple[np.ndarray, ...]:
    """Greedy texts of the prompts, from ``generate`` of transformers."""
    texts = []
    with target().as_transformers() as model, torch.inference_mode():
        for prompt in prompts():
            ids = torch.from_numpy(prompt.astype(np.int64))[None]
            output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                                    max_new_tokens=NEW_TOKENS)
            texts.append(output[0, len(prompt):].numpy())
    return tuple(texts)


def write(drafter=None, batch_size: int = 3, nodes: int = 12, strict: Sequence[int] = (), **engine) -> dict:
    """Results of all rows by number, whose pool has other rows' texts and part of their own.

    Parameters
    ----------
    drafter
        None: retrieval.
    strict
        Rows that are verified strictly.
    engine
        More arguments of ``Engine``.
    """
    texts, requests = greedy_texts(), []
    for row, prompt in enumerate(prompts()):
        previous = np.where(np.arange(len(texts[row])) % 9 == 4, 7, texts[row]).astype(np.int32)
        pools = (Index.build([previous], kind="own"), Index.build([*texts[:row], *texts[row + 1:]]))
        requests.append(Request(row, prompt, pools, strict=row in strict,
                                previous_ids=previous if row % 2 else None))
    settings = EngineSettings(max_new_tokens=NEW_TOKENS, batch_size=batch_size, nodes=nodes, score="always")
    drafter = RetrievalDrafter(DraftSettings()) if drafter is None else drafter
    return {result.id: result for result in Engine(target(), settings, drafter, **engine).run(requests)}


def assert_greedy(results: dict) -> None:
    """Each text must be that of greedy decoding."""
    for row, text in enumerate(greedy_texts()):
        assert results[row].error is None, f"row {row} failed: {results[row].error}"
        found = results[row].token_ids
        assert np.array_equal(found, text), f"row {row}: {found.tolist()}; greedy: {text.tolist()}"
