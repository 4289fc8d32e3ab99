"""What a draft recommender is aligned on: ids behind histories, and the target's law along each of them."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from dare_job.decode.trie_search.beams import Query
from dare_job.decode.trie_search.trie import NONE, ROOT, Trie
from dare_job.errors import ConfigError
from dare_job.storage import paths
from dare_job.training.align.branches import USERS, Engine, MixedTopK, log_probabilities, plain
from dare_job.training.align.options import Settings

_LOG_EVERY_S = 10.0
_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class Lessons:
    """Of N histories S sequences each, and as the last one what was really taken next: R = S + 1.

    codes    int32 (N, R, L); counted bool (N, R, L): places that are aligned on: a prefix ends before level L
    log_p    float16 (N, R, L, C): the target's log-probabilities of the codes of each place
    log_p_k  float32 (N, R, L): of the target's K-th sequence of the same length, behind its own prefix
    """

    codes: torch.Tensor
    counted: torch.Tensor
    log_p: torch.Tensor
    log_p_k: torch.Tensor

    def take(self, rows: torch.Tensor) -> "Lessons":
        return Lessons(*(getattr(self, part.name)[rows] for part in fields(self)))


def make(target: Engine, draft: Engine, trie: Trie, examples: Sequence[tuple[np.ndarray, int]],
         settings: Settings) -> Lessons:
    """Of (history, next item) pairs, in their order.

    S learns on the beams of the mixed law mix * p + (1 - mix) * q, all else on the target's (the paper's D').
    """
    best = plain(target, trie, settings.k)
    chosen = MixedTopK(target, draft, settings.mix, trie, settings.k) if settings.loss == "s" else None
    parts, began = [], time.monotonic()
    told = began
    for at in range(0, len(examples), USERS):
        some = examples[at:at + USERS]
        queries = [Query(target[1].prompt(history), draft_prompt=draft[1].prompt(history))
                   for history, _ in some]
        found = best.search(queries).prefixes
        drawn = chosen.search(queries).prefixes if chosen else found
        parts.append(_of_batch(target, trie, some, found, drawn, settings))
        if time.monotonic() - told > _LOG_EVERY_S:
            told = time.monotonic()
            _LOG.info("target reads histories: %d of %d, %.0f s", at + len(some), len(examples), told - began)
    return Lessons(*(torch.cat([getattr(part, one.name) for part in parts]) for one in fields(Lessons)))


@torch.inference_mode()
def _of_batch(target: Engine, trie: Trie, examples, best: np.ndarray, drawn: np.ndarray,
              settings: Settings) -> Lessons:
    """best, drawn: int64 (B, L, K) as ``Lists.prefixes`` of the target and of what is learned on."""
    width = 1 if settings.top_one else settings.k
    levels = range(1, trie.length + 1) if settings.all_steps else [trie.length]
    sequences = [_sequences(trie, drawn[:, level - 1, :width], level, width) for level in levels]
    lasts = [_sequences(trie, _last(best[:, level - 1]), level, 1) for level in levels]
    taken = target[1].ids.codes[[row for _, row in examples]][:, None].astype(np.int64)
    real = taken, np.ones_like(taken, np.bool_)
    codes, counted = (torch.from_numpy(np.concatenate(part, 1))
                      for part in zip(*sequences, real, *lasts, strict=True))
    codes = codes.to(target[0].device)
    log_p = log_probabilities(target[0].model, target[1], [history for history, _ in examples], codes)
    rows = codes.shape[1] - len(levels)
    log_p_k = log_p[:, rows:].gather(-1, codes[:, rows:, :, None])[..., 0].cpu() * counted[:, rows:]
    whose = [*np.repeat(np.arange(len(levels)), width), len(levels) - 1]
    return Lessons(codes[:, :rows].int().cpu(), counted[:, :rows], log_p[:, :rows].half().cpu(),
                   log_p_k[:, whose])


def _sequences(trie: Trie, nodes: np.ndarray, level: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes int64 (B, width, L) of nodes (B, <= width) of a level, 0 behind them, and where they count."""
    codes = np.zeros((len(nodes), width, trie.length), np.int64)
    counted = np.zeros(codes.shape, np.bool_)
    there = nodes != NONE
    codes[:, :nodes.shape[1], :level] = trie.prefixes(np.where(there, nodes, ROOT), level) * there[..., None]
    counted[:, :nodes.shape[1], :level] = there[..., None]
    return codes, counted


def _last(nodes: np.ndarray) -> np.ndarray:
    """Of nodes (B, K), the best first, the K-th of each user, or the last one that there is: (B, 1)."""
    return np.take_along_axis(nodes, (nodes != NONE).sum(1, keepdims=True) - 1, 1)


def kept(asked: Path | None, own: Path, fingerprint: str, make_them: Callable[[], Lessons]) -> Lessons:
    """From a file that was written for the same fingerprint, else made and written there.

    asked  a file that was named; None: the training's own, which may be replaced. Raises ConfigError where it
           holds anything else
    """
    names, path = [part.name for part in fields(Lessons)], asked or own
    try:
        with safe_open(path, "pt") as file:
            if (file.metadata() or {}).get("fingerprint") == fingerprint:
                return Lessons(*(file.get_tensor(name) for name in names))
    except (OSError, SafetensorError):
        pass
    if asked and asked.exists():
        raise ConfigError(f"--teacher-paths {asked} exists and is not of these data, models and settings: "
                          "name another file, or remove it")
    found = make_them()
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {name: getattr(found, name).contiguous() for name in names}
    with paths.atomic_writer(path, f".{path.name}.partial") as file:
        file.write(save(whole, {"fingerprint": fingerprint}))
    return found
