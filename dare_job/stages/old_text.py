"""Token ids of the text from before the job's date: what pools and rows draft from."""

import logging

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dare_job import knowledge
from dare_job.files import AnyPath
from dare_job.job import Job
from dare_job.model_files import files, tokenizer_hash, vocabulary
from dare_job.spark import indexing, shipping

_LOG = logging.getLogger("dare_job")


def token_ids(job: Job, folder: AnyPath) -> DataFrame:
    """``entity_id, token_ids`` of a folder's texts: as written where they are this tokenizer's, else anew.

    A text with an id that the model has no token for drafts nothing: it is left out.
    """
    written, rest = _parts(job, folder)
    model, trust = str(job.model_path.absolute()), job.config.model.trust_remote_code
    archive = _tokenizer_archive(job)

    def tokenise(batches):
        yield from indexing.tokenise(batches, shipping.unpacked(archive) if archive else model, trust)

    anew = rest.mapInArrow(tokenise, "entity_id string, token_ids array<int>")
    return (anew if written is None else written.unionByName(anew)).where(_sound(_size(job)))


def _tokenizer_archive(job: Job) -> shipping.Archive | None:
    if not shipping.wanted(job, "model"):
        return None
    folder = job.model_path.absolute()
    return shipping.ship(job.spark, folder, f"{job.model_hash} without weights",
                         files(folder, weights=False))


def warn_of_bad_ids(job: Job, folder: AnyPath) -> None:
    """Log which texts ``token_ids`` leaves out for the ids that they were written with, where any."""
    written, _ = _parts(job, folder)
    if written is None:
        return
    size = _size(job)
    bad = written.where(~F.coalesce(_sound(size), F.lit(False)))
    first = [row.entity_id for row in bad.select("entity_id").orderBy("entity_id").limit(3).collect()]
    if first:
        _LOG.warning("%s: texts hold token ids outside the model's %d and draft nothing: %s%s", folder, size,
                     ", ".join(first), " ..." if len(first) == 3 else "")


def _parts(job: Job, folder: AnyPath) -> tuple[DataFrame | None, DataFrame]:
    """Texts with ids of tonight's tokenizer (None: no text can have any), and the words of the others."""
    table = knowledge.read_table(job, folder, ("entity_id", "knowledge", "token_ids"))
    table = table.where(F.length("knowledge") > 0)
    columns = ["entity_id", "knowledge"]
    if knowledge.manifest(folder).get("tokenizer") != tokenizer_hash(job.model_path):
        return None, table.select(columns)
    there = F.coalesce(F.size("token_ids"), F.lit(0)) > 0
    return table.where(there).select("entity_id", "token_ids"), table.where(~there).select(columns)


def _size(job: Job) -> int:
    return vocabulary(job.model_path, job.config.model.trust_remote_code)


def _sound(size: int) -> Column:
    return F.forall("token_ids", lambda token: token.isNotNull() & (token >= 0) & (token < size))
