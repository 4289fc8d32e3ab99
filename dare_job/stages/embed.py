"""Stage embed: learns or copies a vector for every user and item with interactions up to the date."""


import numpy as np

from dare_job.config.settings import EmbedSettings
from dare_job.data.history import end_of_date
from dare_job.embed import lightgcn, vectors
from dare_job.job import Job
from dare_job.observe import progress
from dare_job.schemas import ENTITIES
from dare_job.storage import errors, paths
from dare_job.storage.paths import AnyPath
from dare_job.tables.stage_inputs import require_stage, stage_report
from dare_job.training.lightgcn import Training, train
from dare_job.workspace import committing, digest, done_record, is_done


def run(job: Job) -> dict:
    """Write VECTORS for users and items; returns counts and, for LightGCN, Recall@20 on held-out pairs."""
    settings = job.config.embed
    provided = {entity: paths.path(path, f"embed.vectors.{entity}")
                for entity, path in settings.vectors.items()}
    fingerprint = digest([require_stage(job, "input")["fingerprint"], job.space.dt, end_of_date(job),
                          settings.model_dump(), job.config.seed,
                          {entity: _identity(path, entity) for entity, path in provided.items()}])
    target = job.space.stage("embed")
    if not is_done(target, fingerprint):
        record: dict = {"source": "parquet" if provided else "lightgcn"}
        with committing(target, fingerprint, record) as staging:
            if provided:
                record.update(_copy(provided, staging))
            else:
                source = job.space.stage("input") / "interactions.parquet"
                with progress.doing("reading interactions"):
                    pairs = lightgcn.read_pairs(source, end_of_date(job))
                record.update(_learn(pairs, settings, job.config.seed, staging))
    return stage_report(done_record(target))


def _identity(path: AnyPath, entity: str) -> list | None:
    errors.check_access(path, f"embed.vectors.{entity}")
    if not path.exists():
        return None
    return paths.file_versions([path] if path.is_file() else sorted(path.rglob("*.parquet")))


@progress.doing("copying ready-made vectors")
def _copy(provided: dict[str, AnyPath], staging: AnyPath) -> dict:
    record = {}
    for entity in ENTITIES:
        none = [], np.zeros((0, 1), dtype=np.float32)
        ids, table = vectors.read_vectors(provided[entity]) if entity in provided else none
        vectors.write_vectors(staging / f"entity={entity}" / "part-0.parquet", ids, table)
        record[entity] = len(ids)
    return record


def _learn(graph: lightgcn.Pairs, settings: EmbedSettings, seed: int, staging: AnyPath) -> dict:
    """Train LightGCN without the last pairs of some users, and evaluate the vectors on these pairs."""
    out = lightgcn.hold_out(graph, seed)
    users, items = graph.user[out], graph.item[out]
    known = graph.without(out)
    learned = train(known, Training(settings.dim, settings.epochs, seed))
    ids = dict(zip(ENTITIES, ((graph.users, learned.users), (graph.items, learned.items)), strict=True))
    for entity, (names, table) in ids.items():
        vectors.write_vectors(staging / f"entity={entity}" / "part-0.parquet", names, table)
    return {
        "user": len(graph.users), "item": len(graph.items), "pairs": len(graph.user),
        "loss": [round(value, 5) for value in learned.loss], "held_out": len(out),
        "recall_at_20": round(lightgcn.recall_at_k(learned.users, learned.items, known, users, items), 4)}
