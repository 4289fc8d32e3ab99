"""Converts the input to validated tables, once per date and input."""

from dataclasses import asdict

from dare_job.data.readers import input_identity, read_input
from dare_job.job import Job
from dare_job.storage.paths import AnyPath, path
from dare_job.workspace import committing, digest, is_done


def prepare_input(job: Job) -> AnyPath:
    """Folder with ``interactions users items rejects.parquet``. Reads the input again only if it changed.

    Raises DataError like ``readers.read_input``.
    """
    settings = job.config.input
    folder = job.space.stage("input")
    files = input_identity(settings)
    source = str(path(settings.path).absolute())  # the same for every spelling of a path
    fingerprint = digest([source, settings.format, settings.max_reject_share, files])
    if not is_done(folder, fingerprint):
        record: dict = {}
        with committing(folder, fingerprint, record) as staging:
            record.update(asdict(read_input(settings, staging, job.spark)))
    return job.space.stage("input")
