"""Stage route: chooses the pool that each entity drafts from, and records the reason."""

from collections.abc import Iterator
from functools import lru_cache, partial

import pyarrow as pa

from dare_job.job import Job
from dare_job.observe import progress
from dare_job.schemas import ENTITIES, ROUTES
from dare_job.spark.tables import write_parquet
from dare_job.storage import paths
from dare_job.tables.stage_inputs import require_stage, stage_report, stage_table
from dare_job.workspace import committing, digest, done_record, is_done
from pools import router

Batches = Iterator[pa.RecordBatch]
_ROUTED_BY = ("interactions", "collaborative_group", "attribute_group")
_OUTPUT = ", ".join(f"{name} string" for name in ROUTES.names)


def run(job: Job) -> dict:
    """Write ROUTES for users and items; returns counts by kind of pool.

    Raises
    ------
    DataError
        The stage plan or the stage group has not finished.
    """
    settings = job.config.router
    upstream = [require_stage(job, name)["fingerprint"] for name in ("plan", "group")]
    fingerprint = digest([*upstream, settings.model_dump()])
    target = job.space.stage("route")
    if not is_done(target, fingerprint):
        record: dict = {}
        with committing(target, fingerprint, record) as staging:
            for entity in ENTITIES:
                entities = stage_table(job, "plan", entity).select("entity_id", "interactions").join(
                    stage_table(job, "group", entity), "entity_id", "left")
                route = partial(_route, entity=entity, min_interactions=settings.min_interactions,
                                override=getattr(settings, entity))
                folder = staging / f"entity={entity}"
                with progress.doing(f"choosing a pool for each {entity}"):
                    write_parquet(entities.mapInArrow(route, _OUTPUT), folder)
                    record[entity] = _counts(folder)
    return stage_report(done_record(target))


def _route(batches: Batches, entity: str, min_interactions: int, override: str) -> Batches:
    @lru_cache(maxsize=1 << 16)
    def choose(interactions: int, collaborative: str | None, attribute: str | None) -> tuple[str, str, str]:
        route = router.route(entity, interactions, collaborative, attribute, min_interactions, override)
        return route.pool, route.pool_kind, route.reason

    for batch in batches:
        columns = [batch[name].to_pylist() for name in _ROUTED_BY]
        # the router only compares counts with min_interactions: with clipped counts few rows are distinct
        rows = [choose(min(count, min_interactions), *groups)
                for count, *groups in zip(*columns, strict=True)]
        routes = zip(*rows, strict=True) if rows else ((), (), ())
        yield pa.RecordBatch.from_arrays([batch["entity_id"], *[pa.array(c, pa.string()) for c in routes]],
                                         names=ROUTES.names)


def _counts(folder) -> dict:
    kinds = paths.parquet_dataset(folder).to_table(columns=["pool", "pool_kind"])
    counts = {row["pool_kind"]: row["pool_kind_count"] for row in
              kinds.group_by("pool_kind").aggregate([("pool_kind", "count")]).to_pylist()}
    return {"rows": kinds.num_rows, "pools": len(kinds["pool"].unique()), **counts}
