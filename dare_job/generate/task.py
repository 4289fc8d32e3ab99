"""The description of a task that Spark sends to workers: plain values and paths of folders."""

from dataclasses import dataclass, replace
from pathlib import Path

from dare_job.config.settings import JobConfig
from dare_job.job import Job
from dare_job.models import files
from dare_job.spark import shipping
from dare_job.spark.shipping import Archive
from dare_job.spark.workers import task_threads

# A worker says of each chunk: loads, the models that its process has loaded so far; began, the task's start;
# ended, the chunk's end.
CHUNK_STATS = ("shard int, chunk int, rows long, worker string, gpu string, loads int, began double, "
         "ended double")

WavePools = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Task:
    """Plain values that tell a worker everything; equal tasks share one loaded model.

    folder, pools  the stages' folders; pools_version changes when pools are rebuilt
    cut            token of the cut that the rows belong to
    tokenizer      hash that the pools must have
    threads        torch threads of one worker
    wave_pools     (entity type, folder, checksum of its manifest) of the pool of the waves before
    model_hash     what the model's files must be on every host; empty: it is the driver's, or shipped
    draft          folder of the draft model; empty: none drafts. draft_hash: as model_hash
    archives       the shipped ones of these folders; ``here`` says where they are
    """

    config: JobConfig
    model: str
    tokenizer: str
    folder: str
    pools: str
    pools_version: str
    cut: str
    dt: str
    run_id: str
    threads: int
    wave_pools: WavePools = ()
    model_hash: str = ""
    archives: tuple[Archive, ...] = ()
    draft: str = ""
    draft_hash: str = ""

    @classmethod
    def of(cls, job: Job, pools_version: str = "", cut: str = "") -> "Task":
        """The task of a job; ships its models, and its pools where ``pools_version`` says which."""
        model, pools = job.model_path.absolute(), job.space.stage("pools").resolve()
        shipped = [shipping.ship_model(job, model, job.model_hash, files.files)]
        if job.draft_path:
            shipped.append(shipping.ship_model(job, job.draft_path.absolute(), job.draft_hash, files.files))
        archives = list(dict.fromkeys(archive for archive, _ in shipped if archive))
        hashes = [*(expected for _, expected in shipped), ""]
        if pools_version and shipping.should_ship(job, "pools"):
            archives.append(shipping.ship_folder(job.spark, pools, pools_version))
        return cls(job.config, str(model), files.tokenizer_hash(model),
                   str(job.space.stage("generate").resolve()), str(pools), pools_version, cut,
                   job.space.dt, job.run_id, task_threads(job.spark), (), hashes[0], tuple(archives),
                   str(job.draft_path.absolute()) if job.draft_path else "", hashes[1])

    def of_wave(self, job: Job, wave_pools: WavePools) -> "Task":
        """The same task with the pools of the waves before, which are shipped like the others."""
        archives = self.archives
        if shipping.should_ship(job, "pools"):
            archives += tuple(shipping.ship_folder(job.spark, Path(folder), version)
                              for _, folder, version in wave_pools)
        return replace(self, wave_pools=wave_pools, archives=archives)

    def here(self) -> "Task":
        """In a Spark task: the same with the folders of this host.

        Raises ModelError where the host has another model under the same path, InfrastructureError where
        a shipped folder cannot be unpacked.
        """
        at = {archive.folder: shipping.unpack_archive(archive) for archive in self.archives}
        for folder, expected in ((self.model, self.model_hash), (self.draft, self.draft_hash)):
            files.require_same_files(folder, expected)
        waves = tuple((entity, at.get(pool, pool), version) for entity, pool, version in self.wave_pools)
        return replace(self, model=at.get(self.model, self.model), pools=at.get(self.pools, self.pools),
                       draft=at.get(self.draft, self.draft), wave_pools=waves, model_hash="", draft_hash="",
                       archives=())
