"""The stages on worlds of growing size, each stage in its own processes: time, memory, and how they grow.

The first night is planned only, and gets a snapshot of made-up texts. On the second night one user in fifty
has a new interaction and one item in fifty no text: these are stale, cut into chunks and "written" from a
bank of sentences; all other rows are carried over by publish. The stages are the job's own commands.
``results.json`` in each size's folder keeps what was measured: a run that was stopped goes on behind it.
"""

import argparse
import json
import math
import os
import shutil
import sys
from pathlib import Path

import yaml

from dare_job.bench.scale import meter, world
from dare_job.cli.options import numbers
from dare_job.errors import DareJobError
from dare_job.pipeline import STAGES

_AFTER_ROUTE = STAGES[STAGES.index("generate"):STAGES.index("encode")]  # which is off
# The job's own stages; what is in brackets stands in for the model, or prepares the night. Publish writes the
# report too, which is made once more by itself. Pools take part where they are asked for.
STEPS = ("(world)", "plan of the first night", "(snapshot)", "plan", "embed", "group", "route", "pools",
         "cut", "(texts)", *_AFTER_ROUTE, "report")
_OWN = {"(world)": "world", "(snapshot)": "snapshot", "cut": "cut", "(texts)": "texts"}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m dare_job.bench.scale", description=__doc__.splitlines()[0])
    parser.add_argument("--users", default="10000", help="numbers of users, as in 100000,1000000")
    parser.add_argument("--work", type=Path, required=True, help="folder for inputs, outputs and results")
    parser.add_argument("--dim", type=int, default=32, help="dimensions of the vectors")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--driver-memory", default="4g", help="Java's heap")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="setting of Spark")
    parser.add_argument("--pools", action="store_true", help="measure the stage pools too")
    parser.add_argument("--until", choices=STEPS, help="stop behind this step")
    parser.add_argument("--keep", action="store_true", help="keep inputs and outputs, not results alone")
    options = parser.parse_args(arguments)
    try:
        found = {users: measure(users, options) for users in numbers("--users", options.users)}
    except DareJobError as error:
        sys.exit(f"bench.scale: {error}")
    print(table(found))
    print(json.dumps({"sizes": found, "exponents": exponents(found)}))


def measure(users: int, options: argparse.Namespace) -> dict[str, dict]:
    """Every step of one size that ``results.json`` does not hold yet; {step: cost and what it reported}."""
    folder = (options.work / f"users-{users}").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    settings, results = _settings(folder, users, options), folder / "results.json"
    found = json.loads(results.read_text()) if results.exists() else {}
    for step in STEPS[:1 + STEPS.index(options.until)] if options.until else STEPS:
        if step in found or (step == "pools" and not options.pools):
            continue
        print(f"{users} users: {step} ...", file=sys.stderr, flush=True)
        found[step] = _run(step, settings, folder)
        results.write_text(json.dumps(found, indent=1))
    if not options.until and "disk_mib" not in found:
        found["disk_mib"] = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) >> 20
        _check(found, users)
        results.write_text(json.dumps(found, indent=1))
        if not options.keep:
            for name in ("input", "vectors", "out", "spill"):
                shutil.rmtree(folder / name, ignore_errors=True)
    return found


def _settings(folder: Path, users: int, options: argparse.Namespace) -> Path:
    path = folder / "settings.yaml"
    (folder / "spill").mkdir(exist_ok=True)
    (folder / "world.json").write_text(json.dumps({"users": users, "dim": options.dim}))
    path.write_text(yaml.safe_dump({
        "out": str(folder / "out"), "input": {"path": str(folder / "input"), "format": "parquet"},
        "embed": {f"{entity}s": str(folder / "vectors" / f"entity={entity}") for entity in ("user", "item")},
        "spark": {"master": options.master, "rows_per_commit": 256,
                  "conf": {"spark.driver.memory": options.driver_memory,
                           "spark.local.dir": str(folder / "spill"),
                           **dict(pair.split("=", 1) for pair in options.conf)}},
        "baseline": {"rows": 0}}))
    return path


def _run(step: str, settings: Path, folder: Path) -> dict:
    night = world.NIGHTS[0 if step.endswith("first night") else 1].isoformat()
    if step in _OWN:
        command = ["dare_job.bench.scale.steps", _OWN[step], str(settings)]
    elif step == "report":
        command = ["dare_job", step, "--out", str(folder / "out"), "--date", night]
    else:
        command = ["dare_job", step.split()[0], "--config", str(settings), "--date", night]
    log = folder / f"{step.strip('()').replace(' ', '-')}.log"
    cost, code, output = meter.run([sys.executable, "-m", *command], log, dict(os.environ))
    if code:
        lines = log.read_text(errors="replace").strip().splitlines()
        raise DareJobError(f"{step} ended with {code}, see {log}: {lines[-1] if lines else 'no output'}")
    said = output.strip().splitlines()[-1]
    return {**cost.record(), "report": json.loads(said) if said.startswith("{") else said}


def _check(found: dict, users: int) -> None:
    """Raise DareJobError where publish did not carry over or write what the night's plan says."""
    plan, published = found["plan"]["report"], found["publish"]["report"]
    for entity, rows in (("user", users), ("item", world.items_of(users))):
        counts, stale = published[entity]["counts"], plan[entity]["stale"]
        wanted = {"rows": rows, "written": stale, "carried": rows - stale, "errors": 0, "pending": 0}
        wrong = {name: counts[name] for name in wanted if counts[name] != wanted[name]}
        if wrong or not stale:
            raise DareJobError(f"{entity}s: published {wrong}, wanted {wanted}")


def exponents(found: dict[int, dict]) -> dict[str, dict[str, float]]:
    """e of cost ~ users ** e between neighbouring sizes: seconds, processor seconds, memory."""
    sizes, answer = sorted(found), {}
    for small, large in zip(sizes, sizes[1:], strict=False):
        for step in STEPS:
            one, other = found[small].get(step), found[large].get(step)
            if one and other:
                answer.setdefault(step, {})[f"{small}-{large}"] = {
                    name: round(math.log(other[name] / one[name]) / math.log(large / small), 2)
                    for name in ("seconds", "cpu_s", "memory_mib") if one[name] and other[name]}
    return answer


def table(found: dict[int, dict]) -> str:
    """Markdown: seconds, processor seconds and peak memory of each step and size, and exponents."""
    sizes, growth = sorted(found), exponents(found)
    pairs = [f"{small}-{large}" for small, large in zip(sizes, sizes[1:], strict=False)]
    costs = [f"{users:,} users: s, CPU s, MiB" for users in sizes]
    head = ["step", *costs, *[f"exponents {pair}" for pair in pairs]]
    rows = [[step, *[_cost(found[users].get(step)) for users in sizes],
             *[", ".join(map(str, growth.get(step, {}).get(pair, {}).values())) for pair in pairs]]
            for step in STEPS]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def _cost(step: dict | None) -> str:
    return f"{step['seconds']:.0f}, {step['cpu_s']:.0f}, {step['memory_mib']:,}" if step else ""
