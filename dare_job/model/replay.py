"""How well texts draft each other: known texts replayed against a pool of other texts, no model needed."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

from dare_job.replay.measure import accepted as accepted_path
from dare_job.replay.texts import load_tokenizer, read
from pools.draft import DraftSettings, draft
from pools.index import Index

Texts = Sequence[Sequence[int]]  # token ids of each text


def accepted_per_step(texts: Texts, pool: Texts, nodes: int, context: int, live: bool = False) -> float:
    """Accepted draft tokens over target steps, the bonus token not counted, exact match.

    Each text (R of them) starts from its first token; each step drafts a tree of at most ``nodes`` nodes
    from ``pool`` by contexts of at most ``context`` tokens, with ``live`` also from the text so far,
    accepts the path that agrees with the text and adds one token of the text.
    """
    settings = DraftSettings(context=context, live=live)
    index = Index.build([np.asarray(text, np.int32) for text in pool])
    rows = [np.asarray(text, np.int32) for text in texts if len(text) > 1]
    length = np.array([len(row) for row in rows], np.int32)  # (R,)
    tokens = np.zeros((len(rows), int(length.max())), np.int32)  # (R, L)
    for r, row in enumerate(rows):
        tokens[r, : len(row)] = row
    done = np.ones(len(rows), np.int32)  # (R,) tokens known
    accepted = steps = 0
    while (active := np.flatnonzero(done < length)).size:
        budgets = np.full(active.size, nodes, np.int32)
        trees = draft(tokens[active], done[active], budgets, [[index]] * active.size, settings)
        for place, r in enumerate(active):
            size = trees.sizes[place]
            tree = trees.tokens[place, :size], trees.parents[place, :size]
            matched = len(accepted_path(*tree, rows[r][done[r] :]))
            accepted += matched
            steps += 1
            done[r] += matched + 1
    return accepted / steps


def llama_profiles(folder: Path) -> list[list[int]]:
    """GPT-2 token ids of the ML-1M profiles in swapUniba/LLM-user-profiles-for-recsys (Llama 3, 8B).

    ``folder`` holds ``knowledge/ml1m_users_llama3chatqa.jsonl.gz`` (keys ``user``, ``plain``) and GPT-2's
    ``tokenizer/gpt2_encoder.json`` and ``gpt2_vocab.bpe``. Order: sha256 of the user id, so that a held-out
    set is the first so many. Raises DataError when a file is missing.
    """
    file = folder / "knowledge/ml1m_users_llama3chatqa.jsonl.gz"
    profiles = read(file, "plain", "user")
    order = sorted(range(len(profiles.ids)), key=lambda i: sha256(profiles.ids[i].encode()).hexdigest())
    ids = load_tokenizer([folder / "tokenizer"])([profiles.texts[i] for i in order])
    return [row.tolist() for row in ids]
