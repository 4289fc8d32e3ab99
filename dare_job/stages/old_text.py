"""Token ids of the text from before the job's date: what pools and rows draft from."""

import logging
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dare_job import knowledge
from dare_job.job import Job
from dare_job.model_files import tokenizer_hash, vocabulary
from dare_job.spark import indexing

_LOG = logging.getLogger("dare_job")


def token_ids(job: Job, folder: Path) -> DataFrame:
    """``entity_id, token_ids`` of a folder's texts: as written where they are this tokenizer's, else anew.

    A text with an id that the model has no token for drafts nothing: it is left out.
    """
    size = vocabulary(job.model_path, job.config.model.trust_remote_code)
    return _read(job, folder).where(_sound(size))


def warn_of_bad_ids(job: Job, folder: Path) -> None:
    """Log how many texts ``token_ids`` leaves out, where any."""
    size = vocabulary(job.model_path, job.config.model.trust_remote_code)
    bad = _read(job, folder).where(~F.coalesce(_sound(size), F.lit(False)))
    first = [row.entity_id for row in bad.select("entity_id").orderBy("entity_id").limit(3).collect()]
    if first:
        _LOG.warning("%s: texts hold token ids outside the model's %d and draft nothing: %s%s", folder, size,
                     ", ".join(first), " ..." if len(first) == 3 else "")


def _sound(size: int):
    return F.forall("token_ids", lambda token: token.isNotNull() & (token >= 0) & (token < size))


def _read(job: Job, folder: Path) -> DataFrame:
    table = knowledge.read_table(job, folder).where(F.length("knowledge") > 0)
    same = knowledge.manifest(folder).get("tokenizer") == tokenizer_hash(job.model_path)
    there = F.lit(same) & (F.coalesce(F.size("token_ids"), F.lit(0)) > 0)
    model, trust = str(job.model_path), job.config.model.trust_remote_code

    def tokenise(batches):
        yield from indexing.tokenise(batches, model, trust)

    rest = table.where(~there).select("entity_id", "knowledge")
    anew = rest.mapInArrow(tokenise, "entity_id string, token_ids array<int>")
    return table.where(there).select("entity_id", "token_ids").unionByName(anew) if same else anew
