"""Which pool drafts for whom: users by what they met, items by their category, as in the paper."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.progress import Progress

from dare_job.bench.dare.tables import Data
from dare_job.config import EmbedSettings
from dare_job.embed import kmeans, lightgcn, pairs
from dare_job.tables import INTERACTIONS
from dare_job.workspace import committing, digest, done_record, is_done
from pools import router
from pools.attributes import AttributeTree

CLUSTERS = 3  # of users
_CATEGORY = ("genre",)
_SEED = 0


def pools_of(data: Data, work: Path) -> dict[str, dict[str, tuple[str, str]]]:
    """(name, kind) of the pool by user and by item, kept in ``work``."""
    return {"user": _by_vectors(data, work / "groups" / data.name), "item": _by_category(data)}


def _by_vectors(data: Data, folder: Path) -> dict[str, tuple[str, str]]:
    """k-means of LightGCN vectors, learned from the interactions that the old text knows."""
    known = {user: data.known(user) for user in sorted(data.users)}
    made_of = digest([known, CLUSTERS, EmbedSettings().model_dump()])
    if not is_done(folder, made_of):
        record: dict = {}
        with committing(folder, made_of, record) as staging, Progress(transient=True) as progress:
            rows = [(user, item, None, place)
                    for user, items in known.items() for place, item in enumerate(items)]
            columns = [pa.array(column, field.type)
                       for column, field in zip(zip(*rows, strict=True), INTERACTIONS, strict=True)]
            pq.write_table(pa.table(columns, schema=INTERACTIONS), staging / "interactions.parquet")
            graph = pairs.read(staging / "interactions.parquet", len(rows))
            vectors = lightgcn.train(graph, EmbedSettings(), progress=progress).users
            labels = kmeans.names(kmeans.assign(vectors, kmeans.clusters(len(vectors), 1, CLUSTERS), _SEED))
            record["groups"] = dict(zip(graph.users.to_pylist(), labels.to_pylist(), strict=True))
    groups = done_record(folder)["groups"]
    return {user: _routed("user", len(items), groups.get(user), None, "collaborative")
            for user, items in known.items()}


def _by_category(data: Data) -> dict[str, tuple[str, str]]:
    """Groups of the items that have old text; a new item goes where its category is."""
    rows = [(item, dict(attributes)) for item, (_, attributes) in sorted(data.items.items())]
    old = [row for row in rows if row[0] not in data.new_items]
    tree = AttributeTree.build(old, _CATEGORY, max_size=len(old))
    return {item: _routed("item", 0, None, group, "attribute") for item, group in tree.assign(rows).items()}


def _routed(entity: str, interactions: int, collaborative, attribute, override: str) -> tuple[str, str]:
    found = router.route(entity, interactions, collaborative, attribute, 0, override)
    return found.pool, found.pool_kind
