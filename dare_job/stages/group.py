"""Stage group: groups similar users and items, by vector (k-means) and by attributes (a tree)."""

import json
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dare_job.config.settings import GroupSettings
from dare_job.embed import kmeans, vectors
from dare_job.errors import ConfigError
from dare_job.job import Job
from dare_job.observe import progress
from dare_job.schemas import ENTITIES, GROUPS, TRAFFIC
from dare_job.spark.tables import read_parquet, write_parquet
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath
from dare_job.tables.stage_inputs import require_stage, stage_folder, stage_report, stage_table
from dare_job.workspace import committing, digest, done_record, is_done
from pools.attributes import AttributeTree, learn_order

_LEARN_FROM = 50_000  # entities from which the order of attributes is learned
_MAX_SIZE = 4  # of an attribute group, in target sizes


def run(job: Job) -> dict:
    """Write GROUPS for users and items; returns counts by entity type.

    Raises
    ------
    DataError
        The stage plan or the stage embed has not finished.
    ConfigError
        A configured attribute occurs in no row.
    """
    settings = job.config.group
    upstream = [require_stage(job, name)["fingerprint"] for name in ("plan", "embed")]
    fingerprint = digest([*upstream, settings.model_dump(), job.config.seed])
    target = job.space.stage("group")
    if not is_done(target, fingerprint):
        record: dict = {}
        with committing(target, fingerprint, record) as staging:
            for entity in ENTITIES:
                record[entity] = _group(job, entity, settings, staging)
    return stage_report(done_record(target))


def _group(job: Job, entity: str, settings: GroupSettings, staging: AnyPath) -> dict:
    labels, k = _collaborative(job, entity, settings, staging / f"labels-{entity}.parquet")
    plan = stage_table(job, "plan", entity).withColumn(
        "attributes", F.map_filter("attributes", lambda name, value: name != TRAFFIC))
    # attributes as JSON text, as Spark can neither count nor join maps
    entries = F.array_sort(F.map_entries("attributes"))
    plan = plan.select("entity_id", "attributes", F.to_json(entries).alias("key"))
    order = getattr(settings, f"{entity}_attributes")
    with progress.doing(f"grouping {entity}s by attributes"):
        _check_names(plan, order, f"group.{entity}_attributes")
        order, groups = _attribute_groups(plan, labels, order, _MAX_SIZE * settings.target_size)
    table = plan.join(labels, "entity_id", "left")
    if groups:
        pairs = pa.table({"key": list(groups), "attribute_group": list(groups.values())})
        table = table.join(job.spark.createDataFrame(pairs), "key", "left")
    else:
        table = table.withColumn("attribute_group", F.lit(None).cast("string"))
    folder = staging / f"entity={entity}"
    with progress.doing(f"writing groups of {entity}s"):
        write_parquet(table.select(*GROUPS.names), folder)
        paths.remove_tree(staging / f"labels-{entity}.parquet")
        return {"clusters": k, "attribute_order": order, **_counts(folder)}


def _collaborative(job: Job, entity: str, settings: GroupSettings, path: AnyPath) -> tuple[DataFrame, int]:
    """Cluster of each entity with a vector, as (entity_id, collaborative_group), and k."""
    with progress.doing(f"reading vectors of {entity}s"):
        ids, table = vectors.read_vectors(stage_folder(job, "embed", entity))
    k = kmeans.cluster_count(len(ids), settings.target_size, settings.clusters)
    with progress.counting(f"groups of {entity}s", len(ids)) as counter:
        labels = kmeans.cluster(table, k, job.config.seed, counter.advance)
    path.mkdir()
    labels = pa.table([ids, kmeans.cluster_names(labels)], names=["entity_id", "collaborative_group"])
    with paths.arrow_sink(path / "part-0.parquet") as sink:
        pq.write_table(labels, sink)
    return read_parquet(job.spark, path), k if len(ids) else 0


def _attribute_groups(plan: DataFrame, labels: DataFrame, order: list[str] | Literal["learned"],
                      max_size: int) -> tuple[list[str], dict[str, str]]:
    """Build the tree on the driver from the distinct combinations of attributes and their counts.

    Returns
    -------
    order : list of str
        Attributes from the root of the tree to its leaves.
    groups : dict
        Group of each combination of attributes by its JSON text.
    """
    described = plan.where(F.size("attributes") > 0)
    counts = described.groupBy("key").count().toArrow()
    combinations = {key: _parse(key) for key in counts["key"].to_pylist()}
    if order == "learned":
        names = {name for attributes in combinations.values() for name in attributes}
        order = _learn_order(described, labels) or sorted(names)
    if not order or not combinations:
        return list(order), {}
    tree = AttributeTree.build(
        zip(combinations.values(), counts["count"].to_pylist(), strict=True), order, max_size)
    groups = {key: tree.group_of(attributes) for key, attributes in combinations.items()}
    return list(order), {key: group for key, group in groups.items() if group is not None}


def _check_names(plan: DataFrame, order: list[str] | Literal["learned"], setting: str) -> None:
    """Raise ConfigError if a configured attribute does not occur. The error names the valid ones."""
    if order == "learned":
        return
    names = plan.select(F.explode(F.map_keys("attributes")).alias("name")).distinct()
    known = {row.name for row in names.collect()}
    if known and (unknown := sorted(set(order) - known)):
        raise ConfigError(f"{setting}: no row has an attribute {', '.join(unknown)}; valid choices: "
                          f"{', '.join(sorted(known))}, or learned")


def _learn_order(described: DataFrame, labels: DataFrame) -> list[str]:
    """Order attributes by how well they separate the clusters, on a sample that depends only on the ids."""
    sample = described.join(labels, "entity_id").orderBy(F.xxhash64("entity_id"), "entity_id")
    rows = sample.limit(_LEARN_FROM).select("entity_id", "key", "collaborative_group").toArrow()
    ids = rows["entity_id"].to_pylist()
    attributes = [_parse(key) for key in rows["key"].to_pylist()]
    classes = dict(zip(ids, rows["collaborative_group"].to_pylist(), strict=True))
    return learn_order(list(zip(ids, attributes, strict=True)), classes)


def _parse(key: str) -> dict[str, str]:
    return {entry["key"]: entry["value"] for entry in json.loads(key) if entry.get("value") is not None}


def _counts(folder: AnyPath) -> dict:
    record = {}
    for kind in ("collaborative", "attribute"):
        groups = paths.parquet_dataset(folder).to_table(columns=[f"{kind}_group"]).column(0)
        sizes = pc.value_counts(groups.drop_null()).field("counts").to_pylist()
        record |= {f"{kind}_groups": len(sizes), f"largest_{kind}_group": max(sizes, default=0),
                   f"without_{kind}_group": groups.null_count, "rows": len(groups)}
    return record
