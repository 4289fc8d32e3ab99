"""The description of a task that Spark sends to workers: plain values and paths of folders."""

from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import pyarrow as pa

from dare_job.config.settings import JobConfig
from dare_job.decode.prompt.template import PromptFormat
from dare_job.inference.prompt_format import model_format
from dare_job.job import Job
from dare_job.models import files
from dare_job.schemas import ENTITIES
from dare_job.spark import shipping
from dare_job.spark.shipping import Archive
from dare_job.spark.workers import task_threads

CHUNKS = pa.schema([("shard", pa.int32()), ("chunk", pa.int32()), ("rows", pa.int64())])  # output of a task

WavePools = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Task:
    """Everything that a worker needs, as plain values. Equal tasks share one loaded model.

    Attributes
    ----------
    model, draft
        Folders of the model and of the draft model; empty if there is no draft model.
    model_hash, draft_hash
        Required hash of these folders on every host; empty if no check is needed.
    tokenizer
        Tokenizer hash that the pools must have.
    folder, pools
        Folders of the stages generate and pools.
    pools_version
        Changes when pools are rebuilt.
    plan_token
        Token of the shard plan that the rows belong to.
    threads
        Torch threads of one worker.
    wave_pools
        Entity type, folder and manifest checksum of each pool of earlier waves.
    archives
        Shipped copies of these folders; ``here`` unpacks them.
    stop_at, stop_why
        When no further chunk is started (seconds since 1970), and the reason; None: never.
    row_s
        Expected seconds of a worker per row, until it has measured its own; 0: not known.
    prompt_formats
        What surrounds prompts, by entity type; empty: the section ``model`` alone decides.
    chunks
        Subfolder of ``folder`` in which chunks are committed; empty: ``folder`` itself.
    """

    config: JobConfig
    model: str
    tokenizer: str
    folder: str
    pools: str
    pools_version: str
    plan_token: str
    dt: str
    run_id: str
    threads: int
    wave_pools: WavePools = ()
    model_hash: str = ""
    archives: tuple[Archive, ...] = ()
    draft: str = ""
    draft_hash: str = ""
    prompt_formats: tuple[tuple[str, PromptFormat], ...] = ()
    stop_at: float | None = None
    stop_why: str = ""
    row_s: float = 0.0
    chunks: str = ""

    @classmethod
    def of(cls, job: Job, pools_version: str = "", plan_token: str = "") -> "Task":
        """The task of a job. Ships its models, and also its pools if ``pools_version`` is not empty."""
        model, pools = job.model_path.absolute(), job.space.stage("pools").resolve()
        shipped = [shipping.ship_model(job, model, job.model_hash, files.files)]
        if job.draft_path:
            shipped.append(shipping.ship_model(job, job.draft_path.absolute(), job.draft_hash, files.files))
        archives = list(dict.fromkeys(archive for archive, _ in shipped if archive))
        hashes = [*(expected for _, expected in shipped), ""]
        if pools_version and shipping.should_ship(job, "pools"):
            archives.append(shipping.ship_folder(job.spark, pools, pools_version))
        return cls(job.config, str(model), files.tokenizer_hash(model),
                   str(job.space.stage("generate").resolve()), str(pools), pools_version,
                   plan_token, job.space.dt, job.run_id, task_threads(job.spark), (), hashes[0],
                   tuple(archives), str(job.draft_path.absolute()) if job.draft_path else "", hashes[1],
                   tuple((entity, prompt_format(job.config, entity, job.space.dt)) for entity in ENTITIES))

    def prompt_format(self, entity: str) -> PromptFormat:
        """What surrounds the prompts of an entity type."""
        return dict(self.prompt_formats).get(entity) or model_format(self.config)

    def of_wave(self, job: Job, wave_pools: WavePools) -> "Task":
        """The same task with the pools of earlier waves. Ships them if the other pools are shipped."""
        archives = self.archives
        if shipping.should_ship(job, "pools"):
            archives += tuple(shipping.ship_folder(job.spark, Path(folder), version)
                              for _, folder, version in wave_pools)
        return replace(self, wave_pools=wave_pools, archives=archives)

    def strictly(self, chunks: str = "") -> "Task":
        """The same task with strict verification, and the subfolder of its chunks."""
        verify = self.config.verify.model_copy(update={"rule": "strict"})
        return replace(self, config=self.config.model_copy(update={"verify": verify}), chunks=chunks)

    def here(self) -> "Task":
        """The same task with the folders of this host. Call it in a Spark task.

        Raises
        ------
        ModelError
            The host has another model under the same path.
        InfrastructureError
            A shipped folder cannot be unpacked.
        """
        at = {archive.folder: shipping.unpack_archive(archive) for archive in self.archives}
        for folder, expected in ((self.model, self.model_hash), (self.draft, self.draft_hash)):
            files.require_same_files(folder, expected)
        waves = tuple((entity, at.get(pool, pool), version) for entity, pool, version in self.wave_pools)
        return replace(self, model=at.get(self.model, self.model), pools=at.get(self.pools, self.pools),
                       draft=at.get(self.draft, self.draft), wave_pools=waves, model_hash="", draft_hash="",
                       archives=())


def prompt_format(config: JobConfig, entity: str, day: date | str | None = None) -> PromptFormat:
    """The format of an entity type's prompts. Reads the files of ``prompts``: call it on the driver.

    Parameters
    ----------
    day
        Date of the run, which chat templates print as today's.
    """
    prompt_set = config.prompt_set(entity)
    return model_format(config, day, prompt_set.system_text(entity), prompt_set.example_turns(entity))
