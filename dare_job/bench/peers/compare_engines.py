"""``bench peers``: each engine in a process of its own, one after the other; the table of their figures."""

import json
import logging
import os
import subprocess
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from pathlib import Path

import numpy as np

from dare_job.bench.cli import command
from dare_job.bench.decode.methods import GENERATE, RELAXED, RESD, STRICT
from dare_job.bench.gpu import machine
from dare_job.bench.kept import keep_figures, work_folder
from dare_job.bench.peers import environments, task
from dare_job.cli import options as night_options
from dare_job.config.options import option
from dare_job.decode.model import loading
from dare_job.errors import InfrastructureError
from dare_job.evaluate.measured import print_table, print_targets, target_row
from dare_job.job import Job
from dare_job.models.files import fingerprint
from dare_job.workspace import digest

_LOG = logging.getLogger(__name__)
_METHODS = {
    "vllm": ("plain", "n-gram", "suffix"), "llama.cpp": ("plain", "lookup"),
    "transformers": (GENERATE, "prompt lookup"),
    "dare-job": ("plain", "prompt drafts", RESD, STRICT, RELAXED)}
_SCRIPT = {"vllm": "vllm_engine.py", "llama.cpp": "llama_cpp.py", "transformers": "own.py",
           "dare-job": "own.py"}
_SINGLE = {("transformers", "prompt lookup")}  # methods for one row at a time
_WITH_EARLIER_TEXTS = {"suffix", RESD, STRICT, RELAXED}
_COLUMNS = ("engine", "method", "dtype", "batch", "tokens_per_s", "prompt_s", "accepted_per_step",
            "reused_share", "equal_to_generate", "equal_to_first", "changed_by_batch", "rows", "tokens")
_TARGETS = (  # batch sizes, our method, peer's method, lowest ratio of their speeds
    ((1, 8), STRICT, ("vllm", "n-gram"), 1.5), ((1, 8), STRICT, ("vllm", "suffix"), 1.2),
    ((1, 8, 32), "plain", ("vllm", "plain"), 1.0))


@dataclass(frozen=True)
class Options(task.Options):
    """Options of ``bench peers``: a date to write, whose output folder has the texts of the date before."""

    repeats: int = option("Times that each method runs.", 3)
    engines: tuple[str, ...] = option("Engines to measure.", tuple(_METHODS), parse=task.chosen(_METHODS))
    methods: tuple[str, ...] = option("Methods of these engines to measure. Default: all.", (),
                                      parse=task.chosen(sorted(set(chain(*_METHODS.values())))))


def run(options: Options) -> dict:
    """Measure dare-job's engine beside vLLM, llama.cpp and transformers on the same rows of a run.

    Runs each engine in an environment of its own, which the first call installs, with the same prompts,
    limits and number of threads. vLLM's suffix drafts, resd and dare are given the texts of the date before.
    Speeds include the prompts. reused_share: share of the tokens that are accepted from the row's previous
    text with its prompt, which count neither as steps nor as accepted by one. equal_to_generate and
    equal_to_first count texts that are those of generate, if it is measured, and of the first engine and
    method in the same type; changed_by_batch those that differ from the method's at the smallest batch size.
    Engines can be measured in several calls with the same --work; a last call with all puts them in one
    table. The last line is one JSON object. With
    model.device=cuda, vLLM is the one of this environment, or of the interpreter that DARE_VLLM_PYTHON
    names, and llama.cpp is left out.
    """
    job = night_options.job(options, pick=False)
    with work_folder(options.work) as work:
        work.mkdir(parents=True, exist_ok=True)
        rows = task.read(job, max(options.rows), options.pool)
        place = loading.device(job.config.model.device)
        measured = _measure(job, rows, options, work, place.type)
    table = [_row(each, measured) for each in measured]
    texts = _texts(_same(measured, measured[0], "engine", "method", "dtype"))
    copied = np.mean([task.copied_share(rows.prompts[name].tolist(), text) for name, text in texts.items()])
    changed = sum(name in rows.previous and rows.previous[name].tolist() != text
                  for name, text in texts.items())
    print_table(f"{len(rows.pool)} texts of the date before, {options.threads} thread(s), medians of "
                f"{options.repeats}", table, _COLUMNS)
    print(f"{copied:.0%} of the tokens lie in four tokens in a row of their prompts; {changed} of "
          f"{len(texts)} texts differ from those of the date before\n")
    targets = _targets(table)
    print_targets(targets)
    return {"rows": table, "targets": targets, "copied_share": round(float(copied), 3),
            "changed_texts": changed, "texts": len(texts), "pool": len(rows.pool), "threads": options.threads,
            "model": job.config.model.name, "processor": _processor(),
            "machine": machine.describe(place)}


def _measure(job: Job, rows: task.Rows, options: Options, work: Path, device: str) -> list[dict]:
    """Return the results of all engines, methods and types; what ``work`` has is not measured again."""
    cpus, measured = sorted(os.sched_getaffinity(0)), []
    if device == "cpu":
        cpus = cpus[:options.threads]
    for engine in options.engines:
        if device == "cuda" and engine in environments.ON_CPUS:
            _LOG.warning("%s is measured on a CPU only", engine)
            continue
        python = environments.python_of(engine, work, device)
        for dtype, method in product(options.types(device), _METHODS[engine]):
            sizes = [(batch, count) for batch, count in zip(options.batch, options.rows, strict=True)
                     if batch == 1 or (engine, method) not in _SINGLE]
            if not sizes or method not in (options.methods or [method]):
                continue
            content = task.content(
                rows, job.model_path, work, batches=sizes, repeats=options.repeats, device=device,
                threads=options.threads, max_new_tokens=job.config.decode.max_new_tokens,
                repetition_penalty=job.config.decode.repetition_penalty)
            script = [python, environments.SCRIPTS / _SCRIPT[engine], work / "task.json",
                      work / "results.jsonl", method, dtype]
            known = content if method in _WITH_EARLIER_TEXTS else task.alone(content)
            made_of = [engine, method, dtype, known, fingerprint(job.model_path),
                       environments.version(engine), _processor()]
            measured += keep_figures(
                work / "measured" / f"{digest(made_of)}.json",
                partial(_run, script, content, environments.variables(engine, python, cpus, device), cpus,
                        work / f"{engine}.log", {"engine": engine}))
    return measured


def _run(script: list, content: dict, variables: dict[str, str], cpus: list[int], log: Path,
         names: dict[str, str]) -> list[dict]:
    """Run the script of an engine on a task, and return the results by batch size, with ``names``."""
    *_, file, results, method, dtype = script
    file.write_text(json.dumps(content), encoding="utf-8")
    results.unlink(missing_ok=True)
    _LOG.info("%s, %s, %s", log.stem, method, dtype)
    with log.open("w", encoding="utf-8") as output:
        done = subprocess.run(list(map(str, script)), env=variables, stdout=output, stderr=output,
                              preexec_fn=lambda: os.sched_setaffinity(0, cpus))
    if done.returncode:
        raise InfrastructureError(f"{log.stem} ended with exit code {done.returncode}: "
                                  f"{log.read_text(encoding='utf-8', errors='replace').strip()[-800:]}")
    measured = [names | json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    for each in measured:
        ids = [row["id"] for row in content["rows"][:each["rows"]]]
        each["texts"] = dict(zip(ids, each["texts"], strict=True))
        _LOG.info("%s, %s, %s, batch %d: %.1f tokens/s", log.stem, method, dtype, each["batch"],
                  each["tokens_per_s"])
    return measured


def _texts(measured: list[dict]) -> dict[str, list[int]]:
    """Texts of each row at the smallest batch size that has it."""
    texts: dict[str, list[int]] = {}
    for each in sorted(measured, key=lambda each: each["batch"]):
        texts = each["texts"] | texts
    return texts


def _same(measured: list[dict], each: dict, *names: str) -> list[dict]:
    """What was measured with the same values of these names."""
    return [other for other in measured if all(other[name] == each[name] for name in names)]


def _row(each: dict, measured: list[dict]) -> dict:
    alike = _same(measured, each, "dtype")
    first = _texts(_same(alike, alike[0], "engine", "method"))
    generated = _texts([other for other in alike if other["method"] == GENERATE])
    rounded = {name: round(each[name], 2) for name in _COLUMNS if isinstance(each.get(name), float)}
    return {name: each[name] for name in _COLUMNS if name in each} | rounded | {
        "equal_to_generate": _equal(each, generated) if generated else None,
        "equal_to_first": _equal(each, first), "changed_by_batch": _changed_by_batch(each, measured)}


def _equal(each: dict, texts: dict[str, list[int]]) -> int:
    return sum(text == texts.get(name) for name, text in each["texts"].items())


def _changed_by_batch(each: dict, measured: list[dict]) -> int:
    """Number of texts that differ from those of the same engine and method at its smallest batch size."""
    same = _same(measured, each, "engine", "method", "dtype")
    first = min(same, key=lambda other: other["batch"])["texts"]
    return sum(first.get(name, text) != text for name, text in each["texts"].items())


def _targets(table: list[dict]) -> list[dict]:
    """Compare with the peers: strict drafts, autoregressive decoding, and at batch 32 the best peer.

    In float32 our strict texts have to be those of ``generate``, where it is measured.
    """
    speeds = {(row["engine"], row["method"], row["dtype"], row["batch"]): row["tokens_per_s"]
              for row in table}
    targets = []
    for dtype in dict.fromkeys(row["dtype"] for row in table):
        for batches, method, peer, bound in _TARGETS:
            for batch in batches:
                ours = speeds.get(("dare-job", method, dtype, batch))
                theirs = speeds.get((*peer, dtype, batch))
                if ours and theirs:
                    name = f"{dtype}, batch {batch}: {method} over {' '.join(peer)}, at least"
                    targets.append(target_row(name, bound, ours / theirs, ours >= bound * theirs))
        others = [speed for (engine, _, kind, batch), speed in speeds.items()
                  if engine != "dare-job" and kind == dtype and batch == 32]
        ours = speeds.get(("dare-job", STRICT, dtype, 32))
        if others and ours:
            targets.append(target_row(f"{dtype}, batch 32: dare strict over the best peer, at least", 1.0,
                                      ours / max(others), ours >= max(others)))
    compared = [row for row in table if row["engine"] == "dare-job" and row["method"] != RELAXED
                and row["dtype"] == "float32" and row.get("equal_to_generate") is not None]
    if compared:
        differing = sum(row["rows"] - row["equal_to_generate"] for row in compared)
        targets.append(target_row("float32: strict texts that are not generate's, at most", 0, differing,
                                  differing == 0))
    return targets


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"


main = command(Options)(run)
