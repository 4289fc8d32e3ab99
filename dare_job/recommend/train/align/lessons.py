"""What a draft recommender is aligned on: ids behind histories, and the target's law along each of them."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from dare_job import files
from dare_job.recommend.ids.vocabulary import Recommender
from dare_job.recommend.train import beams
from dare_job.recommend.train.align.branches import log_probabilities
from dare_job.recommend.train.align.settings import Settings
from dare_job.recommend.train.table import CodeTable

_USERS = 32  # at once
_LOG_EVERY_S = 10.0
_LOG = logging.getLogger("dare_job")

Scorer = tuple[torch.nn.Module, Recommender]


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


def make(target: Scorer, draft: Scorer, table: CodeTable, examples: Sequence[tuple[np.ndarray, int]],
         settings: Settings) -> Lessons:
    """Of (history, next item) pairs, in their order.

    S learns on the beams of the mixed law mix * p + (1 - mix) * q, all else on the target's (the paper's D').
    """
    parts, began = [], time.monotonic()
    told = began
    for at in range(0, len(examples), _USERS):
        parts.append(_of_batch(target, draft, table, examples[at:at + _USERS], settings))
        if time.monotonic() - told > _LOG_EVERY_S:
            told = time.monotonic()
            _LOG.info("target reads histories: %d of %d, %.0f s", at + _USERS, len(examples), told - began)
    return Lessons(*(torch.cat([getattr(part, one.name) for part in parts]) for one in fields(Lessons)))


@torch.inference_mode()
def _of_batch(target: Scorer, draft: Scorer, table: CodeTable, examples, settings: Settings) -> Lessons:
    histories, device = [history for history, _ in examples], target[0].device
    best = beams.search([target], [1.0], table, histories, settings.k)
    chosen = beams.search([target, draft], [settings.mix, 1 - settings.mix], table, histories,
                          settings.k) if settings.loss == "s" else best
    taken = torch.tensor(target[1].ids.codes[[row for _, row in examples]], dtype=torch.int64, device=device)
    steps = range(len(best)) if settings.all_steps else [len(best) - 1]
    width = 1 if settings.top_one else settings.k
    drawn = [_filled(chosen[step], best[step], width, len(best)) for step in steps]
    real = (taken[:, None], torch.ones_like(taken[:, None], dtype=torch.bool), _last(best[-1])[:, None])
    codes, counted, log_p_k = (torch.cat(part, 1) for part in zip(*drawn, real, strict=True))
    log_p = log_probabilities(*target, histories, codes)
    return Lessons(codes.int().cpu(), counted.cpu(), log_p.half().cpu(), log_p_k.cpu())


def _filled(chosen: beams.Beams, best: beams.Beams, width: int, length: int) -> tuple[torch.Tensor, ...]:
    """``width`` sequences padded to a length with code 0, where they count, and log p of the K-th one."""
    missing, level = width - chosen.scores.shape[1], chosen.codes.shape[2]
    there = chosen.scores[:, :width] > -torch.inf
    pad = torch.nn.functional.pad
    codes = pad(chosen.codes[:, :width], (0, length - level, 0, max(0, missing)))
    counted = pad(there[..., None].expand(-1, -1, level), (0, length - level, 0, max(0, missing)))
    log_p_k = pad(_last(best), (0, length - level))
    return codes, counted, log_p_k[:, None].expand(-1, width, -1)


def _last(best: beams.Beams) -> torch.Tensor:
    """Log-probabilities (B, level) along the K-th sequence of each user, or the last one that there is."""
    place = (best.scores > -torch.inf).sum(1).clamp_min(1) - 1
    return best.steps[torch.arange(len(place), device=place.device), place]


def kept(path: Path, fingerprint: str, make_them) -> Lessons:
    """From a file that was written for the same fingerprint, else made and written there."""
    names = [part.name for part in fields(Lessons)]
    try:
        with safe_open(path, "pt") as file:
            if (file.metadata() or {}).get("fingerprint") == fingerprint:
                return Lessons(*(file.get_tensor(name) for name in names))
    except (OSError, SafetensorError):
        pass
    found = make_them()
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {name: getattr(found, name).contiguous() for name in names}
    with files.writing(path, f".{path.name}.partial") as file:
        file.write(save(whole, {"fingerprint": fingerprint}))
    return found
