"""``dare-job recommender align``: train a draft recommender to propose what its target recommends."""

import logging
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
from dare_job.training.align import teacher_paths
from dare_job.training.align.branches import Engine, Scorer, search_engine
from dare_job.training.align.objective import objective
from dare_job.training.align.settings import SEARCHED_ALPHAS, Options, Settings
from dare_job.training.align.teacher_paths import TeacherPaths
from dare_job.training.checkpoint import Checkpoint
from dare_job.training.loop import Schedule, Training, fit
from dare_job.training.recommender.network import extra_dropout
from dare_job.training.recommender.sequences import Sequences
from dare_job.training.recommender.train import data_digest, finish, sample, validation_rows
from dare_job.training.result import require_replaceable, training_folder
from dare_job.workspace import digest

Example = tuple[np.ndarray, int]  # history, and the row of the next item
KIND = "aligned draft"
_TEACHER_SETTINGS = ("k", "top_one", "all_steps", "examples", "seed")
_LOG = logging.getLogger("dare_job")


@dataclass(frozen=True)
class AlignmentData:
    """What alignments with different alphas share."""

    vocabulary: Vocabulary  # the trie of the ids, with codes instead of tokens
    examples: list[Example]
    teacher_paths: TeacherPaths
    held_out: list[np.ndarray]
    target_prefixes: np.ndarray  # of ``held_out``


def run(options: Options) -> dict:
    """Align the draft, replace the folder ``to`` atomically, and return the training's record.

    A killed run resumes from its last checkpoint if it is started with the same options.

    Raises
    ------
    ConfigError
        The options are invalid, or the recommenders' item ids differ.
    ModelError
        A recommender or a tokenizer cannot be read, or the loss is not finite.
    DataError
        The data or the item ids are invalid.
    """
    began, settings = time.monotonic(), options.settings
    require_replaceable(options.to, KIND, {"--recommender": options.target, "--draft": options.draft})
    target, draft = (_open_recommender(folder, options.device) for folder in (options.target, options.draft))
    _require_same(target[1], draft[1])
    tokenizer = _tokenizer(options.draft)
    sequences, folder = options.data.read(target[1].ids), training_folder(options.to)
    inputs = [data_digest(sequences), fingerprint(options.target), fingerprint(options.draft)]
    data = _alignment_data(search_engine(target), search_engine(draft, trained=True), sequences, options,
                           inputs)
    before = _accepted(draft, data, settings)
    results = {}
    for alpha in SEARCHED_ALPHAS if settings.alpha is None else (settings.alpha,):
        settings_of_alpha = replace(settings, alpha=alpha)
        model, _ = _open_recommender(options.draft, options.device)
        record = align((model, draft[1]), data, settings_of_alpha,
                       Checkpoint(folder / f"alpha-{alpha:g}", digest([*inputs, asdict(settings_of_alpha)])))
        results[alpha] = (model, record, _accepted((model, draft[1]), data, settings))
        _LOG.info("alpha %g: %.3f accepted steps, %.3f before", alpha, results[alpha][2], before)
    alpha = max(results, key=lambda value: results[value][2])
    model, record, after = results[alpha]
    report = finish(options.to, model, tokenizer, draft[1], began, {
        "kind": KIND, "loss": settings.loss, "settings": asdict(settings) | {"alpha": alpha},
        "alphas": {f"{value:g}": round(accepted, 4) for value, (_, _, accepted) in results.items()},
        "training": record,
        "accepted_steps": {"before": round(before, 4), "after": round(after, 4), "k": settings.k,
                           "beams": settings.beams, "users": len(data.held_out)},
        "target": str(options.target), **options.data.record(sequences)})
    return {"draft": str(options.to), **report}


def align(draft: Scorer, data: AlignmentData, settings: Settings,
          checkpoint: Checkpoint | None = None) -> dict:
    """Train the draft in place; it keeps the weights of the epoch with most accepted steps, or the last."""
    torch.manual_seed(settings.seed)
    lengths = np.array([len(history) for history, _ in data.examples])

    def batches(number: int) -> list[torch.Tensor]:
        rng = np.random.default_rng((settings.seed, number))
        order = np.argsort(lengths + rng.random(len(lengths)) * 2, kind="stable")  # by length
        parts = torch.from_numpy(order).split(settings.batch)
        return [parts[place] for place in rng.permutation(len(parts))]

    def loss(rows: torch.Tensor) -> torch.Tensor:
        histories = [data.examples[row][0] for row in rows.tolist()]
        return objective(draft, data.vocabulary, histories, data.teacher_paths.take(rows), settings)

    training = Training(batches, loss, lambda: -_accepted(draft, data, settings), name="draft recommender")
    schedule = Schedule(settings.epochs, settings.rate, settings.weight_decay, settings.warmup,
                        settings.patience, keep_start=True, keep_last=settings.keep_last)
    with extra_dropout(draft[0], settings.dropout):
        return fit(draft[0], training, schedule, checkpoint)


def examples(data: Sequences, count: int, seed: int) -> list[Example]:
    """A random sample of at most ``count`` (history, next item) pairs of the training part."""
    pairs = [(row[:place], int(row[place])) for row in data.train for place in range(1, len(row))]
    return sample(pairs, count, seed)


def _alignment_data(target: Engine, draft: Engine, sequences: Sequences, options: Options,
                    inputs: list[str]) -> AlignmentData:
    settings, trie = options.settings, Trie.from_codes(target[1].ids.codes)
    pairs = examples(sequences, settings.examples, settings.seed)
    held_out = [history for history, _ in validation_rows(sequences, settings.held_out, settings.seed)]
    mixed = [settings.mix, inputs[2]] if settings.loss == "s" else "of the target"
    key = digest([inputs[:2], mixed, {name: getattr(settings, name) for name in _TEACHER_SETTINGS}])
    own = training_folder(options.to) / "teacher-paths.safetensors"
    paths = teacher_paths.load_or_make(options.teacher_paths, own, key,
                                       lambda: teacher_paths.make(target, draft, trie, pairs, settings))
    best = teacher_paths.best_prefixes(target, trie, held_out, settings.k)
    return AlignmentData(Vocabulary(trie, [0] * trie.length, options.device), pairs, paths, held_out, best)


def _accepted(draft: Scorer, data: AlignmentData, settings: Settings) -> float:
    engine = search_engine(draft, trained=True)
    drafted = teacher_paths.best_prefixes(engine, data.vocabulary.trie, data.held_out, settings.beams)
    return float(teacher_paths.accepted_steps(data.target_prefixes, drafted).mean())


def _open_recommender(folder: Path, device: str) -> Scorer:
    recommender = Recommender.open(folder)
    return loading.load(folder, "float32", trust_remote_code=False).eval().to(device), recommender


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise ModelError(f"--draft {folder}: its tokenizer cannot be read: {describe(error)}") from error


def _require_same(target: Recommender, draft: Recommender) -> None:
    if not target.ids.same_codes(draft.ids) or target.ids.sizes != draft.ids.sizes:
        raise ConfigError(f"{draft.folder} has other item ids than {target.folder}: train the draft with the "
                          "target's item_ids.json")
