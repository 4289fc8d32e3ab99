"""Training data of an alignment: item ids after histories, and the target's distributions along them.

Also the measure of an alignment: how many beam steps of the target a draft's beams cover.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dare_job.decode.trie_search.beams import Query
from dare_job.decode.trie_search.trie import NONE, ROOT, Trie
from dare_job.errors import ConfigError
from dare_job.observe import progress
from dare_job.training.align.branches import BATCH_USERS, Engine, MixedTopK, log_probabilities, top_k_search
from dare_job.training.align.settings import Settings
from dare_job.training.checkpoint import load_tensors, save_tensors


class TeacherPaths(NamedTuple):
    """Code sequences to align on. Each of N histories has R: S searched sequences, then its real next item.

    Attributes
    ----------
    codes : int32 (N, R, L)
        Codes of L levels, padded with 0.
    counted : bool (N, R, L)
        True where the sequence has a code; prefixes are shorter than L.
    log_p : float16 (N, R, L, C)
        The target's log-probabilities of all C codes at each level.
    log_p_k : float32 (N, R, L)
        The target's log-probability of each code of its K-th best sequence of the same length, given that
        sequence's own prefix.
    """

    codes: torch.Tensor
    counted: torch.Tensor
    log_p: torch.Tensor
    log_p_k: torch.Tensor

    def take(self, rows: torch.Tensor) -> "TeacherPaths":
        """The paths of the histories ``rows`` int64 (B,)."""
        return TeacherPaths(*(part[rows] for part in self))


def make(target: Engine, draft: Engine, trie: Trie, examples: Sequence[tuple[np.ndarray, int]],
         settings: Settings) -> TeacherPaths:
    """Teacher paths of (history, next item) pairs, in their order.

    Loss S trains on the beams of the mixture mix * p + (1 - mix) * q, all others on the target's beams (the
    paper's D').
    """
    best = top_k_search(target, trie, settings.k)
    mixed = MixedTopK(target, draft, settings.mix, trie, settings.k) if settings.loss == "s" else None
    parts = []
    with progress.counting("teacher paths", len(examples), unit="histories") as counter:
        for at in range(0, len(examples), BATCH_USERS):
            batch = examples[at:at + BATCH_USERS]
            queries = [Query(target[1].prompt(history), draft_prompt=draft[1].prompt(history))
                       for history, _ in batch]
            prefixes = best.search(queries).prefixes
            trained = mixed.search(queries).prefixes if mixed else prefixes
            parts.append(_of_batch(target, trie, batch, prefixes, trained, settings))
            counter.advance(len(batch))
    return TeacherPaths(*map(torch.cat, zip(*parts, strict=True)))


@torch.inference_mode()
def _of_batch(target: Engine, trie: Trie, examples, best: np.ndarray, trained: np.ndarray,
              settings: Settings) -> TeacherPaths:
    """best, trained : int64 (B, L, K), prefixes of the target's beams and of the beams to train on"""
    width = 1 if settings.top_one else settings.k
    levels = range(1, trie.length + 1) if settings.all_steps else [trie.length]
    sequences = [_sequences(trie, trained[:, level - 1, :width], level, width) for level in levels]
    lasts = [_sequences(trie, _last(best[:, level - 1]), level, 1) for level in levels]
    next_items = target[1].ids.codes[[row for _, row in examples]][:, None].astype(np.int64)
    real = next_items, np.ones_like(next_items, np.bool_)
    codes, counted = (torch.from_numpy(np.concatenate(part, 1))
                      for part in zip(*sequences, real, *lasts, strict=True))
    codes = codes.to(target[0].device)
    log_p = log_probabilities(target[0].model, target[1], [history for history, _ in examples], codes)
    rows = codes.shape[1] - len(levels)
    log_p_k = log_p[:, rows:].gather(-1, codes[:, rows:, :, None])[..., 0].cpu() * counted[:, rows:]
    level_of_row = [*np.repeat(np.arange(len(levels)), width), len(levels) - 1]
    return TeacherPaths(codes[:, :rows].int().cpu(), counted[:, :rows], log_p[:, :rows].half().cpu(),
                   log_p_k[:, level_of_row])


def _sequences(trie: Trie, nodes: np.ndarray, level: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes int64 (B, width, L) of nodes (B, <= width) of a level, padded with 0, and where they count."""
    codes = np.zeros((len(nodes), width, trie.length), np.int64)
    counted = np.zeros(codes.shape, np.bool_)
    exists = nodes != NONE
    prefixes = trie.prefixes(np.where(exists, nodes, ROOT), level)
    codes[:, :nodes.shape[1], :level] = prefixes * exists[..., None]
    counted[:, :nodes.shape[1], :level] = exists[..., None]
    return codes, counted


def _last(nodes: np.ndarray) -> np.ndarray:
    """The K-th of each user's nodes (B, K), best first, or the last one if there are fewer: (B, 1)."""
    return np.take_along_axis(nodes, (nodes != NONE).sum(1, keepdims=True) - 1, 1)


def load_or_make(file: Path | None, own: Path, fingerprint: str,
                 make_paths: Callable[[], TeacherPaths]) -> TeacherPaths:
    """Load teacher paths that were saved with this fingerprint, or make and save them.

    Parameters
    ----------
    file
        File that the user named; None: ``own``, which may be replaced.

    Raises
    ------
    ConfigError
        ``file`` holds something else.
    """
    if saved := load_tensors(file or own, fingerprint):
        return TeacherPaths(**saved[0])
    if file and file.exists():
        raise ConfigError(f"--teacher-paths {file} exists and was made from other data, models or settings: "
                          "name another file, or remove it")
    paths = make_paths()
    save_tensors(file or own, paths._asdict(), fingerprint=fingerprint)
    return paths


def best_prefixes(engine: Engine, trie: Trie, histories: Sequence[np.ndarray], width: int) -> np.ndarray:
    """The best nodes int64 (U, L - 1, W) of each level except the last, padded with NONE."""
    search = top_k_search(engine, trie, width)
    queries = [Query(engine[1].prompt(history)) for history in histories]
    return np.concatenate([search.search(queries[at:at + BATCH_USERS]).prefixes
                           for at in range(0, len(queries), BATCH_USERS)])[:, :-1]


def accepted_steps(targets: np.ndarray, drafted: np.ndarray) -> np.ndarray:
    """Beam steps that strict verification accepts of a first draft, int64 (U,).

    These are the leading levels whose K prefixes of the target are all among the draft's N. At most L - 1,
    as the target's forward pass gives the last step itself.

    Parameters
    ----------
    targets, drafted : int64 (U, L - 1, K) and (U, L - 1, N)
        ``best_prefixes`` of target and draft.
    """
    covered = (targets[..., None] == drafted[:, :, None]).any(-1) | (targets == NONE)
    return np.logical_and.accumulate(covered.all(-1), axis=1).sum(1)
