"""After the warm-up, a worker's first rows compile nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
import numpy as np, torch
sys.path.insert(0, sys.argv[1])
from numba.core.dispatcher import Dispatcher
from decode_models import tiny
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.decode.engine.latency import LatencyCurve
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine.draft_budget import AdaptiveBudget
from dare_job.generate.loading import warm_up
from pools.draft import DraftSettings
from pools.index import Index

def compiled():
    return {(name, kernel.py_func.__name__, str(signature))
            for name, module in list(sys.modules.items()) if name.startswith(("dare_job.", "pools."))
            for kernel in vars(module).values() if isinstance(kernel, Dispatcher)
            for signature in kernel.signatures}

target = Target(tiny("llama"))
before = compiled()
torch.manual_seed(3)
warm_up()
print("SEED", torch.equal(torch.rand(4), torch.manual_seed(3) and torch.rand(4)))
known = compiled()
print("WARM", len(known - before) > 10)
text = np.tile(np.arange(3, 40, dtype=np.int32), 3)
curve = LatencyCurve.of({"1": {"1": 1.0, "17": 1.2}, "3": {"1": 1.0, "17": 1.2}}, "x")
for rule in ("strict", "relaxed", "ratio"):
    for scheduler in (AdaptiveBudget(curve, 8), None):
        settings = EngineSettings(rule=rule, batch_size=3, nodes=8, max_new_tokens=24)
        engine = Engine(target, settings, RetrievalDrafter(DraftSettings()), draft_budget=scheduler)
        rows = [Request(n, text[:4 + n], (Index.build([text]),), previous_ids=text[5:30] if n % 2 else None)
                for n in range(6)]
        print("ROWS", len(list(engine.run(rows))))
print("NEW", sorted(compiled() - known))
"""


@pytest.mark.slow
def test_first_rows_compile_nothing_and_the_seed_is_unchanged():
    done = subprocess.run([sys.executable, "-c", CODE, str(Path(__file__).parent)], capture_output=True,
                          text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout.splitlines()
    assert said == ["SEED True", "WARM True", *["ROWS 6"] * 6, "NEW []"]
