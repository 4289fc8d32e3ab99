"""What travels to a worker that recommends, and the search that it loads: once a Python worker and device.

The search that the settings ask for: a recommender's folder, its drafter, and how they work together.
"""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dare_job.config.recommend import RecommendSettings
from dare_job.decode.model.loading import device as device_of
from dare_job.decode.model.target import Target
from dare_job.decode.trie_search.draft_depth import DraftDepth
from dare_job.decode.trie_search.drafts import ModelScorer, Scorer, TrieDrafter
from dare_job.decode.trie_search.item_weights import (
    LeafScorer,
    PopularityWeights,
    TransitionWeights,
    UniformWeights,
)
from dare_job.decode.trie_search.sampled import SampledTopK, SampledTrieDrafter
from dare_job.decode.trie_search.search import TopK
from dare_job.decode.trie_search.trie import Trie, Vocabulary
from dare_job.errors import ConfigError, ModelError
from dare_job.generate import engines
from dare_job.job import Job
from dare_job.models import files as models_files
from dare_job.recommend import users
from dare_job.recommend.catalogue import Catalogue
from dare_job.recommend.rows import BatchRecommender
from dare_job.recommend.vocabulary import Recommender
from dare_job.spark import shipping, workers
from dare_job.spark.session import is_local
from dare_job.spark.shipping import Archive
from dare_job.spark.workers import task_threads
from dare_job.storage import paths

TRIE, POPULARITY, TRANSITIONS = "trie", "popularity", "transitions"

WITHOUT_MODEL = (TRIE, POPULARITY, TRANSITIONS)

Sequences = Callable[[], Sequence[Sequence[int]]]


def open_drafter(recommender: Recommender, folder: Path) -> Recommender:
    """The small recommender of a folder. Raises ConfigError where it says other ids."""
    found = Recommender.open(folder)
    same = found.ids.items == recommender.ids.items and (found.ids.codes == recommender.ids.codes).all()
    if not same:
        raise ConfigError(f"recommend.drafter = {folder}: its items have other ids than those of "
                          f"{recommender.folder}; train it with the same item_ids.json")
    return found


def scorer(name: str, trie: Trie, sequences: Sequences, recommender: Recommender | None, dtype: str,
           device: str) -> Scorer:
    """name: of ``WITHOUT_MODEL``, which learn from ``sequences`` of leaves, or the folder of
    ``recommender``.
    """
    if name in WITHOUT_MODEL:
        made = {TRIE: UniformWeights, POPULARITY: PopularityWeights, TRANSITIONS: TransitionWeights}[name]
        weights = made(trie) if name == TRIE else made(trie, sequences())
        return LeafScorer(Vocabulary(trie, [0] * trie.length, device_of(device)), weights)
    model = Target.load(recommender.folder, dtype, device)
    return ModelScorer(model, Vocabulary(trie, list(recommender.first_code_token), model.device))


def make_search(settings: RecommendSettings, recommender: Recommender, trie: Trie, sequences: Sequences,
           drafter: Recommender | None, device: str) -> TopK:
    """Loads the models. Raises ModelError."""
    target = Target.load(recommender.folder, settings.dtype, device)
    k, made, scheduler = min(settings.k, trie.leaves), None, None  # more beams than ids would find no more
    common = target, trie, recommender.first_code_token, k
    if settings.drafter:
        by_whom = scorer(settings.drafter, trie, sequences, drafter, settings.dtype, device)
        width = 0 if settings.drafter == TRIE else settings.draft_width
        kind = SampledTrieDrafter if settings.temperature else TrieDrafter
        made = kind(by_whom, trie.length, width, settings.draft_depth, settings.draft_whole)
    if settings.temperature:
        return SampledTopK(*common, settings.temperature, made, settings.verify, settings.scores,
                           seed=settings.seed)
    if made and settings.draft == "auto":
        scheduler = DraftDepth(None, trie.length, settings.draft_width)
    return TopK(*common, made, settings.scores, scheduler)


@dataclass(frozen=True)
class ModelSource:
    """A recommender's folder on the driver; ``archive`` where it is shipped (spark.ship). sha256: what its
    files must be on a host that is not the driver's; empty: not asked.
    """

    folder: str
    archive: Archive | None
    sha256: str

    @classmethod
    def of(cls, job: Job, folder: Path) -> "ModelSource":
        folder, archive, sha256 = folder.absolute(), None, models_files.fingerprint(folder)
        if shipping.should_ship(job, "model"):
            archive = shipping.ship_folder(job.spark, folder, sha256, models_files.files(folder))
        asked = archive is None and not is_local(job.spark.sparkContext.master)
        return cls(str(folder), archive, sha256 if asked else "")

    def here(self) -> Path:
        """In a Spark task: the folder of this host. Raises ModelError where it is another model's."""
        if self.archive:
            return Path(shipping.unpack_archive(self.archive))
        if self.sha256 and models_files.fingerprint(self.folder) != self.sha256:
            raise ModelError(f"{socket.gethostname()} has another model in {self.folder} than the driver: "
                             "copy the driver's there, or let spark.ship=auto send it")
        return Path(self.folder)


@dataclass(frozen=True)
class RecommendTask:
    """Plain values; equal tasks share one loaded search.

    settings  of the section recommend, as JSON
    users     folder of the tables of ``users``
    folder    of what this run makes: chunks, and who hung; cut: the token of its chunks
    """

    model: ModelSource
    drafter: ModelSource | None
    settings: str
    users: str
    folder: str
    cut: str
    device: str
    task_threads: int
    run_id: str
    hang_timeout_s: float | None = None

    @classmethod
    def of(cls, job: Job, folder: Path, drafter: Path | None, users_: paths.AnyPath, work: paths.AnyPath,
           cut: str) -> "RecommendTask":
        return cls(ModelSource.of(job, folder), drafter and ModelSource.of(job, drafter),
                   job.config.recommend.model_dump_json(), str(users_.resolve()), str(work.resolve()), cut,
                   job.config.model.device, task_threads(job.spark), job.run_id,
                   job.config.decode.hang_timeout_s)

    @property
    def chunks(self) -> paths.AnyPath:
        """Where finished chunks go."""
        return paths.path(self.folder) / "chunks"


def load(task: RecommendTask) -> BatchRecommender:
    """In a Spark task: what makes lists, on the GPU that Spark gave the task, or where model.device says."""
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
    catalogue = Catalogue.of(recommender.ids, users.counts(folder, recommender.ids))

    def sequences():
        return users.sequences(folder, recommender.ids, catalogue.trie.rows)

    with engines.memory_errors("the recommender"):
        search = make_search(settings, recommender, catalogue.trie, sequences, drafter,
                             workers.select_device(task.device, gpu))
    return BatchRecommender(
        search, catalogue, recommender, drafter, settings.exclude, settings.k, settings.batch_size
    )
