"""What the scripts of all engines share: they read a task, repeat it, and append a JSON line per batch size.

A script is called with the task's file, the file to append to, the method and the data type. It needs the
standard library alone, because it runs in the environment of another engine.
"""

import json
import statistics
import sys
import time

WARM_UP = 2  # rows


def run(make_engine) -> None:
    """Measure the engine ``make_engine(task, method, dtype)``.

    It has ``write(rows, batch, max_new_tokens)``, which returns the token ids of each row's text,
    ``forget()``, after which it knows none of the prompts and texts of earlier calls, and the numbers of
    tokens so far that were ``accepted`` from drafts, and ``reused`` from the row's previous text with its
    prompt.
    """
    task_file, results, method, dtype = sys.argv[1:]
    with open(task_file, encoding="utf-8") as file:
        task = json.load(file)
    engine = make_engine(task, method, dtype)
    for batch, count in task["batches"]:
        row = _measure(engine, task, batch, task["rows"][:count])
        with open(results, "a", encoding="utf-8") as file:
            file.write(json.dumps({"method": method, "dtype": dtype, "batch": batch} | row) + "\n")


def _measure(engine, task: dict, batch: int, rows: list) -> dict:
    engine.write(rows[:WARM_UP], batch, 8)
    seconds, prompt_s = [], []
    for _ in range(task["repeats"]):
        engine.forget()
        prompt_s.append(_timed(lambda: engine.write(rows, batch, 1))[1])
        engine.forget()
        accepted, reused = engine.accepted, engine.reused
        texts, took = _timed(lambda: engine.write(rows, batch, task["max_new_tokens"]))
        seconds.append(took)
    accepted, reused, tokens = engine.accepted - accepted, engine.reused - reused, sum(map(len, texts))
    steps = tokens - len(rows) - accepted - reused  # the first token of a text comes with its prompt
    return {"rows": len(rows), "tokens": tokens, "tokens_per_s": tokens / statistics.median(seconds),
            "prompt_s": statistics.median(prompt_s), "seconds": seconds,
            "accepted_per_step": accepted / max(1, steps), "reused_share": reused / tokens, "texts": texts}


def _timed(call):
    began = time.perf_counter()
    return call(), time.perf_counter() - began
