"""Token ids of the text from before the job's date: what pools and rows draft from."""

from pathlib import Path

from pyspark.sql import functions as F

from dare_job import knowledge
from dare_job.job import Job
from dare_job.model_files import tokenizer_hash
from dare_job.spark import indexing


def token_ids(job: Job, folder: Path):
    """``entity_id, token_ids`` of a folder's texts: as written where the tokenizer is the same, else anew."""
    table = knowledge.read_table(job, folder).where(F.length("knowledge") > 0)
    if knowledge.manifest(folder).get("tokenizer") == tokenizer_hash(job.model_path):
        return table.where(F.size("token_ids") > 0).select("entity_id", "token_ids")
    model, trust = str(job.model_path), job.config.model.trust_remote_code

    def tokenise(batches):
        yield from indexing.tokenise(batches, model, trust)

    texts = table.select("entity_id", "knowledge")
    return texts.mapInArrow(tokenise, "entity_id string, token_ids array<int>")
