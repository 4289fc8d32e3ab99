"""dare-job's engine and transformers' ``generate``, in dare-job's own environment."""

from pathlib import Path

import harness
import numpy as np
import torch

from dare_job.bench.decode import methods
from dare_job.bench.decode.methods import Budget, Learned
from dare_job.bench.peers import task as peers_task
from dare_job.decode.engine.draft_budget import max_row_nodes
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from pools.draft import warm_up
from pools.index import Index

_NAMES = {"plain": methods.AUTOREGRESSIVE, "prompt lookup": methods.LOOKUP,
          "prompt drafts": methods.OWN_LOOKUP}


class Engine:
    def __init__(self, task: dict, method: str, dtype: str):
        torch.set_num_threads(task["threads"])
        self._task, self._method = task, _NAMES.get(method, method)
        warm_up()
        self._target = Target.load(task["model"], dtype=dtype, device=task["device"])
        pool = Index.build([np.array(text, np.int32) for text in task["pool"]])
        self._requests = {row["id"]: self._request(row, pool) for row in task["rows"]}
        self._learned: dict[int, Learned] = {}
        self.accepted = self.reused = 0

    def write(self, rows: list, batch: int, max_new_tokens: int) -> list:
        nodes = max_row_nodes(batch, self._target.paged is not None)
        budget = Budget(batch, nodes, max_new_tokens, self._task["threads"],
                        Path(self._task["work"]) / "latency", self._task["repetition_penalty"])
        learned = self._learned.get(batch) or self._learned.setdefault(
            batch, Learned(self._method, self._target, budget))
        measured = methods.run_method(self._method, self._target, [self._requests[row["id"]] for row in rows],
                                      budget, learned)
        self.accepted += measured.accepted
        self.reused += measured.scored
        texts = measured.texts[0]
        return [texts[row["id"]].tolist() for row in rows]

    def forget(self) -> None:
        """Drop the prefixes of prompts. The pool keeps the earlier texts alone."""
        self._target.prefix_cache = type(self._target.prefix_cache)()

    def _request(self, row: dict, pool: Index) -> Request:
        previous = np.array(row["previous"], np.int32) if row["previous"] else None
        return peers_task.request(row["id"], np.array(row["prompt"], np.int32), previous, pool)


if __name__ == "__main__":
    harness.run(Engine)
