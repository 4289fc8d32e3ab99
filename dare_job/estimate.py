"""What tonight would cost, from yesterday's figures or from a few rows decoded here and now."""

import time
from dataclasses import dataclass

from dare_job import knowledge
from dare_job.data.text_key import text_salt
from dare_job.job import Job
from dare_job.spark import loading
from dare_job.spark.placing import task_slots
from dare_job.stages import plan, upstream
from dare_job.tables import ENTITIES, PLAN

_PROBED = 4  # rows of each entity type that are decoded where there is no yesterday


@dataclass(frozen=True)
class _Cost:
    """Tokens a row and seconds a token of one worker, of one entity type, and where they come from."""

    tokens: float
    seconds: float
    basis: str


def estimate(job: Job) -> dict:
    """Rows to write, their tokens and the seconds on all workers; the stage plan must have run.

    Figures come from yesterday's manifest where the same model and text settings wrote it; else a few
    rows are decoded plainly in this process, which is an upper bound.
    """
    rows = {entity: _todo(job, entity) for entity in ENTITIES}
    workers = task_slots(job.spark)
    tokens = seconds = 0.0
    bases = []
    for entity, table in rows.items():
        if table.num_rows:
            cost = _yesterday(job, entity) or _probe(job, entity, table.slice(0, _PROBED))
            tokens += table.num_rows * cost.tokens
            seconds += table.num_rows * cost.tokens * cost.seconds
            bases.append(cost.basis)
    basis = " and ".join(dict.fromkeys(bases)) or "nothing is stale"
    return {"users": rows["user"].num_rows, "items": rows["item"].num_rows, "tokens": round(tokens),
            "seconds": round(seconds / workers, 1), "workers": workers, "basis": basis}


def _todo(job: Job, entity: str):
    return plan.todo(knowledge.dataset(upstream.folder(job, "plan", entity), PLAN), job.limit)


def _yesterday(job: Job, entity: str) -> _Cost | None:
    old = knowledge.old_folder(job, entity)
    written = knowledge.manifest(old) if old else {}
    same = written.get("text_settings") == text_salt(job.config, job.model_hash, job.draft_hash)
    if not same or not written.get("tokens_per_s"):
        return None
    if not written["counts"]["written"]:
        return None
    tokens = written["totals"]["tokens"] / written["counts"]["written"]
    return _Cost(tokens, 1 / written["tokens_per_s"], f"figures of {written['date']}")


def _probe(job: Job, entity: str, rows) -> _Cost:
    """Decode some rows without drafts, in this process and with a worker's threads."""
    task = loading.Task.of(job)
    requests = [loading.request({"entity": entity, **row}, task, drafted=False) for row in rows.to_pylist()]
    engine = loading.engine(task, mode="autoregressive")
    began = time.perf_counter()
    tokens = sum(len(result.token_ids) for result in engine.run(requests))
    seconds = time.perf_counter() - began
    return _Cost(tokens / len(requests), seconds / max(1, tokens), f"{_PROBED} rows decoded plainly now")
