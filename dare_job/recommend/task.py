"""What a recommendation worker receives, and the search that it loads once per Python worker and device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from dare_job.config.decoding import RecommendSettings
from dare_job.decode.model.loading import device as device_of
from dare_job.decode.model.paged.pool import share_memory
from dare_job.decode.model.target import Target
from dare_job.decode.trie_search.draft_depth import DraftDepth
from dare_job.decode.trie_search.drafts import ModelScorer, Scorer, TrieDrafter
from dare_job.decode.trie_search.item_weights import LeafScorer, PopularityWeights, TransitionWeights
from dare_job.decode.trie_search.sampled import SampledTopK, SampledTrieDrafter
from dare_job.decode.trie_search.search import TopK
from dare_job.decode.trie_search.trie import Trie, Vocabulary
from dare_job.errors import ConfigError
from dare_job.inference.model import memory_errors
from dare_job.job import Job
from dare_job.models import files as models_files
from dare_job.recommend import users
from dare_job.recommend.catalogue import Catalogue
from dare_job.recommend.rows import BatchRecommender
from dare_job.recommend.vocabulary import Recommender
from dare_job.spark import shipping, workers
from dare_job.spark.shipping import Archive
from dare_job.spark.workers import task_threads
from dare_job.storage import paths

TRIE, POPULARITY, TRANSITIONS = "trie", "popularity", "transitions"
WITHOUT_MODEL = (TRIE, POPULARITY, TRANSITIONS)
Sequences = Callable[[], Sequence[Sequence[int]]]


def open_drafter(recommender: Recommender, folder: Path) -> Recommender:
    """Open the draft recommender of a folder.

    Raises
    ------
    ConfigError
        As ``Recommender.open``, or the item ids of the two recommenders differ.
    ModelError, DataError
        As ``Recommender.open``.
    """
    drafter = Recommender.open(folder)
    if not drafter.ids.same_codes(recommender.ids):
        raise ConfigError(f"recommend.drafter = {folder}: its item ids differ from those of "
                          f"{recommender.folder}; train it with the same item_ids.json")
    return drafter


def scorer(name: str, trie: Trie, sequences: Sequences, recommender: Recommender | None, dtype: str,
           device: str) -> Scorer:
    """Make a scorer: one of ``WITHOUT_MODEL``, learned from sequences of leaves, or a model's."""
    if name in WITHOUT_MODEL:
        weights_type = TransitionWeights if name == TRANSITIONS else PopularityWeights
        weights = weights_type(trie) if name == TRIE else weights_type(trie, sequences())
        return LeafScorer(Vocabulary(trie, [0] * trie.length, device_of(device)), weights)
    model = Target.load(recommender.folder, dtype, device)
    return ModelScorer(model, Vocabulary(trie, list(recommender.first_code_token), model.device))


def make_search(settings: RecommendSettings, recommender: Recommender, trie: Trie, sequences: Sequences,
                drafter: Recommender | None, device: str, seed: int = 0) -> TopK:
    """Load the models and make the search that the settings ask for.

    Raises
    ------
    ModelError
        A model is missing, damaged or not supported.
    ConfigError
        The device is not available.
    """
    target = Target.load(recommender.folder, settings.dtype, device)
    k, drafter_search, draft_depth = min(settings.k, trie.leaves), None, None  # no more beams than ids
    arguments = target, trie, recommender.first_code_token, k
    if settings.drafter:
        drafter_scorer = scorer(settings.drafter, trie, sequences, drafter, settings.dtype, device)
        if isinstance(drafter_scorer, ModelScorer):
            share_memory(target, drafter_scorer.node_scores.target)
        width = 0 if settings.drafter == TRIE else settings.draft_width
        drafter_type = SampledTrieDrafter if settings.temperature else TrieDrafter
        levels = settings.draft_depth if isinstance(settings.draft_depth, int) else None
        drafter_search = drafter_type(drafter_scorer, trie.length, width, levels, settings.draft_whole)
    if settings.temperature:
        return SampledTopK(*arguments, settings.temperature, drafter_search, settings.verify, settings.scores,
                           seed=seed)
    if drafter_search and settings.draft_depth == "auto":
        draft_depth = DraftDepth(trie.length, settings.draft_width)
    return TopK(*arguments, drafter_search, settings.scores, draft_depth)


@dataclass(frozen=True)
class ModelSource:
    """A recommender's folder on the driver.

    Attributes
    ----------
    archive
        The shipped folder (spark.ship), or None.
    sha256
        Expected fingerprint of the files on another host; empty for no check.
    """

    folder: str
    archive: Archive | None
    sha256: str

    @classmethod
    def of(cls, job: Job, folder: Path) -> "ModelSource":
        folder = folder.absolute()
        return cls(str(folder), *shipping.ship_model(job, folder, models_files.fingerprint(folder),
                                                     models_files.files))

    def here(self) -> Path:
        """Return the folder on this host, in a Spark task.

        Raises
        ------
        ModelError
            The host has no model or another model under the same path.
        InfrastructureError
            The shipped folder cannot be unpacked.
        """
        if self.archive:
            return Path(shipping.unpack_archive(self.archive))
        models_files.require_same_files(self.folder, self.sha256)
        return Path(self.folder)


@dataclass(frozen=True)
class RecommendTask:
    """Settings of a worker, as plain values; equal tasks share one loaded search.

    Attributes
    ----------
    settings
        The section recommend, as JSON.
    users
        Folder of the tables of ``users``.
    folder
        Folder of this run's chunks and hang records.
    plan_token
        Token of its chunks.
    """

    model: ModelSource
    drafter: ModelSource | None
    settings: str
    users: str
    folder: str
    plan_token: str
    device: str
    threads: int
    run_id: str
    hang_timeout_s: float | None = None
    seed: int = 0

    @classmethod
    def of(cls, job: Job, folder: Path, drafter: Path | None, users_: paths.AnyPath, work: paths.AnyPath,
           plan_token: str) -> "RecommendTask":
        return cls(ModelSource.of(job, folder), drafter and ModelSource.of(job, drafter),
                   job.config.recommend.model_dump_json(), str(users_.resolve()), str(work.resolve()),
                   plan_token, job.config.model.device, task_threads(job.spark), job.run_id,
                   job.config.decode.hang_timeout_s, job.config.seed)

    @property
    def chunks(self) -> paths.AnyPath:
        """Folder of finished chunks."""
        return paths.path(self.folder) / "chunks"


def load(task: RecommendTask) -> BatchRecommender:
    """Load the recommender of a Spark task, on the GPU that Spark assigned or on model.device."""
    return _load(task, workers.task_gpu())


@lru_cache(maxsize=1)
def _load(task: RecommendTask, gpu: str | None) -> BatchRecommender:
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(task.threads)
    settings = RecommendSettings.model_validate_json(task.settings)
    recommender = Recommender.open(task.model.here())
    drafter = open_drafter(recommender, task.drafter.here()) if task.drafter else None
    folder = paths.path(task.users)
    catalogue = Catalogue.build(recommender.ids, users.counts(folder, recommender.ids))

    sequences = partial(users.sequences, folder, recommender.ids, catalogue.trie.rows)
    with memory_errors("the recommender"):
        search = make_search(settings, recommender, catalogue.trie, sequences, drafter,
                             workers.select_device(task.device, gpu), task.seed)
    return BatchRecommender(search, catalogue, recommender, drafter, settings.exclude, settings.k,
                            settings.batch_size)
