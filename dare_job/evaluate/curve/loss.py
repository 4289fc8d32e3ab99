"""AUC of the settings' texts against that of strict text: sets of knowledge, and `ctr` over them in pairs."""

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import stats

from dare_job.evaluate.curve.options import Check
from dare_job.evaluate.curve.table import Loss
from dare_job.evaluate.curve.written import Setting, Written, name
from dare_job.job import Job
from dare_job.models.files import EMBEDDED
from dare_job.schemas import ENTITIES, KNOWLEDGE
from dare_job.tables import published, stage_inputs
from dare_job.workspace import MANIFEST, write_json

_LOG = logging.getLogger("dare_job")
_COLUMNS = ("entity_id", "knowledge", "generated_dt", "prompt_sha256", "relaxed_tokens")


def measure(job: Job, sample: list[dict], found: Mapping[Setting, Written], check: Check, folder: Path,
            alpha: float) -> tuple[dict[Setting, dict[str, Loss]], int]:
    """Loss of AUC by setting and CTR model, and how many rows kept their text, in all sets.

    A setting whose texts all equal the strict ones loses nothing, and nothing tells how sure that is.
    """
    from dare_job.evaluate.ctr.command import run

    carried = {entity: _carried(job, entity) for entity in ENTITIES}
    others = [setting for setting in found
              if setting is not None and found[setting].texts != found[None].texts]
    sets = {}
    for setting in [None, *others]:
        sets[name(setting)] = out = folder / name(setting).replace(" ", "-").replace("=", "")
        _write_set(job, sample, found[setting], carried, out)
    losses = {setting: {model: Loss(by_seed=[0.0] * check.seeds, mean=0.0, bound=None)
                        for model in check.models} for setting in found if setting is not None}
    if not others:
        return losses, sum(map(len, carried.values()))
    result = run(asked(job, sets, check))
    auc = {(row["knowledge"], row["model"]): np.array(row["auc"]) for row in result["rows"]}
    for setting in others:
        losses[setting] = {model: _loss(auc["strict", model] - auc[name(setting), model], alpha)
                           for model in check.models}
    return losses, sum(map(len, carried.values()))


def asked(job: Job, sets: dict[str, Path], check: Check):
    """``ctr`` over sets of texts, encoded as the stage encode would, which is how the curve's cosine is."""
    from dare_job.evaluate.ctr.options import Options
    from dare_job.evaluate.ctr.train import TrainSettings

    encode = job.config.encode
    return Options(
        data=check.data, knowledge={key: str(out) for key, out in sets.items()}, models=check.models,
        seeds=check.seeds, dt=job.space.dt, labels_from=check.labels_from, encoder=encode.model or EMBEDDED,
        min_rating=check.min_rating, device=check.device,
        training=TrainSettings(epochs=check.epochs))


def _loss(differences: np.ndarray, alpha: float) -> Loss:
    """One-sided t bound of the mean of (seeds,) paired differences; none where they have no spread."""
    mean = float(differences.mean())
    reach = stats.sem(differences) * stats.t.ppf(1 - alpha, len(differences) - 1)
    return Loss(by_seed=[round(float(value), 6) for value in differences], mean=mean,
                bound=mean + float(reach) if np.ptp(differences) > 0 else None)


def _carried(job: Job, entity: str) -> list[dict]:
    """Rows of the old text that tonight keeps as they are."""
    from pyspark.sql import functions as F

    old = published.previous_folder(job, entity)
    if old is None:
        return []
    fresh = stage_inputs.stage_table(job, "plan", entity).where(~F.col("stale")).select("entity_id")
    table = published.read_texts(job, old, _COLUMNS).where(F.col("knowledge").isNotNull())
    if old.name.startswith("dt="):
        table = table.withColumn("generated_dt", F.coalesce("generated_dt", F.lit(old.name[3:])))
    return [row.asDict() for row in table.join(fresh, "entity_id", "left_semi").collect()]


def _write_set(job: Job, sample: list[dict], one: Written, carried: dict[str, list[dict]], out: Path) -> None:
    """A folder that ``ctr`` reads as the output of a run on the date."""
    for entity in ENTITIES:
        rows = carried[entity] + [
            {"entity_id": row["entity_id"], "knowledge": one.texts[key][0], "generated_dt": job.space.dt,
             "prompt_sha256": row["prompt_sha256"], "relaxed_tokens": one.relaxed_in[key]}
            for row in sample if row["entity"] == entity and (key := (entity, row["entity_id"])) in one.texts]
        folder = out / "knowledge" / f"entity={entity}" / f"dt={job.space.dt}"
        folder.mkdir(parents=True, exist_ok=True)
        schema = pa.schema([KNOWLEDGE.field(column) for column in _COLUMNS])
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "part-0.parquet")
        write_json(folder / MANIFEST, {"date": job.space.dt, "entity": entity,
                                       "settings": job.config.model_dump(mode="json"),
                                       "previous": str(published.previous_folder(job, entity) or "") or None,
                                       "files": {"part-0.parquet": {"rows": len(rows)}}})
