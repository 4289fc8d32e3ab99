"""What travels to a worker that recommends, and the search that it loads: once a Python worker and device."""

import socket
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dare_job import files, model_files
from dare_job.config import RecommendSettings
from dare_job.errors import ModelError
from dare_job.job import Job
from dare_job.recommend import searching, users
from dare_job.recommend.catalogue import Catalogue
from dare_job.recommend.ids.vocabulary import Recommender
from dare_job.recommend.rows import Writer
from dare_job.spark import gpus, models, shipping
from dare_job.spark.session import is_local
from dare_job.spark.shipping import Archive
from dare_job.spark.task import threads


@dataclass(frozen=True)
class Model:
    """A recommender's folder on the driver; ``archive`` where it is shipped (spark.ship). sha256: what its
    files must be on a host that is not the driver's; empty: not asked.
    """

    folder: str
    archive: Archive | None
    sha256: str

    @classmethod
    def of(cls, job: Job, folder: Path) -> "Model":
        folder, archive, sha256 = folder.absolute(), None, model_files.fingerprint(folder)
        if shipping.wanted(job, "model"):
            archive = shipping.ship(job.spark, folder, sha256, model_files.files(folder))
        asked = archive is None and not is_local(job.spark.sparkContext.master)
        return cls(str(folder), archive, sha256 if asked else "")

    def here(self) -> Path:
        """In a Spark task: the folder of this host. Raises ModelError where it is another model's."""
        if self.archive:
            return Path(shipping.unpacked(self.archive))
        if self.sha256 and model_files.fingerprint(self.folder) != self.sha256:
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

    model: Model
    drafter: Model | None
    settings: str
    users: str
    folder: str
    cut: str
    device: str
    threads: int
    run_id: str
    hang_timeout_s: float | None = None

    @classmethod
    def of(cls, job: Job, folder: Path, drafter: Path | None, users_: files.AnyPath, work: files.AnyPath,
           cut: str) -> "RecommendTask":
        return cls(Model.of(job, folder), drafter and Model.of(job, drafter),
                   job.config.recommend.model_dump_json(), str(users_.resolve()), str(work.resolve()), cut,
                   job.config.model.device, threads(job), job.run_id, job.config.decode.hang_timeout_s)

    @property
    def chunks(self) -> files.AnyPath:
        """Where finished chunks go."""
        return files.path(self.folder) / "chunks"


def loaded(task: RecommendTask) -> Writer:
    """In a Spark task: what makes lists, on the GPU that Spark gave the task, or where model.device says."""
    return _load(task, gpus.address())


@lru_cache(maxsize=1)
def _load(task: RecommendTask, gpu: str | None) -> Writer:
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(task.threads)
    settings = RecommendSettings.model_validate_json(task.settings)
    recommender = Recommender.open(task.model.here())
    drafter = searching.drafter_of(recommender, task.drafter.here()) if task.drafter else None
    folder = files.path(task.users)
    catalogue = Catalogue.of(recommender.ids, users.counts(folder, recommender.ids))

    def sequences():
        return users.sequences(folder, recommender.ids, catalogue.trie.rows)

    with models.fitting("the recommender"):
        search = searching.search(settings, recommender, catalogue.trie, sequences, drafter,
                                  gpus.take(task.device, gpu))
    return Writer(search, catalogue, recommender, drafter, settings.exclude, settings.k, settings.batch_size)
