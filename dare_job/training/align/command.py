"""``dare-job align``: a target and a draft recommender in, the draft aligned to the target out."""

import logging
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from dare_job.decode.model import loading
from dare_job.decode.trie_search.trie import Trie, Vocabulary
from dare_job.errors import ConfigError, ModelError, describe
from dare_job.models.files import fingerprint
from dare_job.recommend.vocabulary import Recommender
from dare_job.training.align import settings as align_settings
from dare_job.training.align import teacher_paths
from dare_job.training.align.branches import Engine, Scorer, engine
from dare_job.training.align.objective import objective
from dare_job.training.align.options import SEARCHED_ALPHAS, Options, Settings
from dare_job.training.align.teacher_paths import Lessons
from dare_job.training.checkpoint import Checkpoint
from dare_job.training.loop import Schedule, Training, fit
from dare_job.training.recommender.command import (
    content_of,
    require_place,
    sample,
    training_folder,
    versions,
    watched,
    write_folder,
)
from dare_job.training.recommender.network import dropping
from dare_job.training.recommender.sequences import Sequences
from dare_job.workspace import digest

Example = tuple[np.ndarray, int]  # history, and the row of the item that was taken next

KIND = "aligned draft"

_DECIDES_LESSONS = ("k", "top_one", "all_steps", "examples", "seed")

_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class Course:
    """All that one alignment needs but its alpha."""

    view: Vocabulary  # the trie of the ids, with codes for tokens
    examples: list[Example]
    teacher_paths: Lessons
    held_out: list[np.ndarray]
    wanted: np.ndarray  # the target's best prefixes of those held out


def run(options: Options) -> dict:
    """Align and write the folder whole, or leave what was there. Returns what was found.

    A run that was killed goes on from its last checkpoint when it is started with the same options.
    """
    began, settings = time.monotonic(), options.settings
    require_place(options.to, KIND, {"--recommender": options.target, "--draft": options.draft})
    target, draft = (_opened(folder, options.device) for folder in (options.target, options.draft))
    _require_same(target[1], draft[1])
    tokenizer = _tokenizer(options.draft)
    data = options.data.read(target[1].ids)
    trie = Trie.from_codes(target[1].ids.codes)
    view = Vocabulary(trie, [0] * trie.length, options.device)
    place = training_folder(options.to)
    marks = [content_of(data), fingerprint(options.target), fingerprint(options.draft)]
    course = _course(engine(target), engine(draft, learns=True), view, data, options, marks)
    before = _accepted(draft, course, settings)
    tried = {}
    for alpha in SEARCHED_ALPHAS if settings.alpha is None else (settings.alpha,):
        chosen = replace(settings, alpha=alpha)
        model, _ = _opened(options.draft, options.device)
        record = align((model, draft[1]), course, chosen,
                       Checkpoint(place / f"alpha-{alpha:g}", digest([*marks, asdict(chosen)])))
        tried[alpha] = (model, record, _accepted((model, draft[1]), course, settings))
        _LOG.info("alpha %g: %.3f accepted steps, %.3f before", alpha, tried[alpha][2], before)
    alpha = max(tried, key=lambda one: tried[one][2])
    model, record, after = tried[alpha]
    found = {"kind": KIND, "loss": settings.loss, "settings": asdict(settings) | {"alpha": alpha},
             "alphas": {f"{one:g}": round(tried[one][2], 4) for one in tried}, "training": record,
             "accepted_steps": {"before": round(before, 4), "after": round(after, 4), "k": settings.k,
                                "beams": settings.beams, "users": len(course.held_out)},
             "parameters": sum(weight.numel() for weight in model.parameters()),
             "target": str(options.target), **options.data.told(data),
             "minutes": round((time.monotonic() - began) / 60, 2), "versions": versions()}
    write_folder(options.to, model.cpu(), tokenizer, draft[1], found)
    shutil.rmtree(place, ignore_errors=True)
    return {"draft": str(options.to), **found}


def align(draft: Scorer, course: Course, settings: Settings, checkpoint: Checkpoint | None = None) -> dict:
    """Train the draft in place; the epoch with the most accepted steps on those held out stays, or the last
    one.
    """
    torch.manual_seed(settings.seed)
    lengths = np.array([len(history) for history, _ in course.examples])

    def batches(number: int) -> list[torch.Tensor]:
        rng = np.random.default_rng((settings.seed, number))
        order = np.argsort(lengths + rng.random(len(lengths)) * 2, kind="stable")  # like lengths together
        found = torch.from_numpy(order).split(settings.batch)
        return [found[place] for place in rng.permutation(len(found))]

    def loss(rows: torch.Tensor) -> torch.Tensor:
        histories = [course.examples[row][0] for row in rows.tolist()]
        return objective(draft, course.view, histories, course.teacher_paths.take(rows), settings)

    training = Training(batches, loss, lambda: -_accepted(draft, course, settings), name="draft recommender")
    schedule = Schedule(settings.epochs, settings.rate, settings.weight_decay, settings.warmup,
                        settings.patience, keep_start=True, keep_last=settings.keep_last)
    with dropping(draft[0], settings.dropout):
        return fit(draft[0], training, schedule, checkpoint)


def examples(data: Sequences, count: int, seed: int) -> list[Example]:
    """``count`` at most of all (history, next item) pairs of the part to learn from, drawn with a seed."""
    pairs = [(row[:place], int(row[place])) for row in data.train for place in range(1, len(row))]
    return sample(pairs, count, seed)


def _course(target: Engine, draft: Engine, view: Vocabulary, data: Sequences, options: Options,
            marks: list) -> Course:
    settings = options.settings
    pairs = examples(data, settings.examples, settings.seed)
    held = [history for history, _ in watched(data, settings.held_out, settings.seed)]
    mixed = [settings.mix, marks[2]] if settings.loss == "s" else "of the target"
    decides = digest([marks[:2], mixed, {name: getattr(settings, name) for name in _DECIDES_LESSONS}])
    own = training_folder(options.to) / "lessons.safetensors"
    found = teacher_paths.kept(options.teacher_paths, own, decides,
                               lambda: teacher_paths.make(target, draft, view.trie, pairs, settings))
    return Course(view, pairs, found, held, align_settings.prefixes(target, view.trie, held, settings.k))


def _accepted(draft: Scorer, course: Course, settings: Settings) -> float:
    by = engine(draft, learns=True)
    drafted = align_settings.prefixes(by, course.view.trie, course.held_out, settings.beams)
    return float(align_settings.accepted_steps(course.wanted, drafted).mean())


def _opened(folder: Path, device: str) -> Scorer:
    recommender = Recommender.open(folder)
    return loading.load(folder, "float32", trust_remote_code=False).eval().to(device), recommender


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """That the aligned draft's folder gets, too. Raises ModelError before anything is trained."""
    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise ModelError(f"--draft {folder}: its tokenizer cannot be read: {describe(error)}") from error


def _require_same(target: Recommender, draft: Recommender) -> None:
    same = target.ids.items == draft.ids.items and np.array_equal(target.ids.codes, draft.ids.codes)
    if not same or target.ids.sizes != draft.ids.sizes:
        raise ConfigError(f"{draft.folder} has other item ids than {target.folder}: train the draft with the "
                          "target's item_ids.json")
