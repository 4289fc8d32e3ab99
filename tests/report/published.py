"""Small published dates for tests of the report: real Parquet, manifests, and the embedded tokenizer."""

from collections import Counter
from datetime import date, timedelta
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dare_job.models.files import resolve, tokenizer_hash
from dare_job.schemas import KNOWLEDGE, PLAN, ROUTES
from dare_job.workspace import MANIFEST, write_json

DAY = "2026-01-09"
HOSTILE = "<script>document.title='broken'</script> \"quoted\" & 'single' <img src=x onerror=alert(1)>"
HOSTILE_ID = "u\"><script>alert('id')</script>"
WORDS = "This user likes slow films about the sea and comes back to old directors every winter."
KINDS = ("collaborative", "attribute", "global")
SUMS = ("tokens", "target_steps", "scored_tokens", "accepted_tokens", "relaxed_tokens", "slot_steps")


def day(before: int) -> str:
    return str(date.fromisoformat(DAY) - timedelta(days=before))


@cache
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(resolve("embedded"))


def text(identifier: str, words: str = WORDS, dt: str = DAY, kind: str | None = "collaborative",
         accepted: int = 3, scored: int = 0, **columns) -> dict:
    """A generated row: ``scored`` reused tokens, then steps of ``accepted`` draft tokens."""
    ids = tokenizer()(words)["input_ids"]
    steps = [min(scored + 1, len(ids))]
    while sum(steps) < len(ids):
        steps.append(min(accepted + 1, len(ids) - sum(steps)))
    drafted = sum(steps[1:]) - len(steps[1:])
    return {
        "entity_id": identifier, "knowledge": words, "token_ids": ids, "tokens": len(ids),
        "finish_reason": "eos", "generated_dt": dt,
        "source_run_id": f"run-{dt}", "run_id": f"run-{dt}", "pool_kind": kind,
        "pool": kind and (kind if kind == "global" else f"{kind}-0001"), "prompt_tokens": 40,
        "target_steps": len(steps) - 1, "scored_tokens": steps[0] - 1, "accepted_tokens": drafted,
        "relaxed_tokens": 0, "guarded_tokens": 0, "step_tokens": steps, "retrieval_ms": 0.2,
        "decode_ms": 4.0 * len(steps), "slot_steps": 1.1 * len(steps), "text_key": "k", "prompt_sha256": "s",
    } | columns


def failed(identifier: str, error: str, dt: str = DAY) -> dict:
    return {"entity_id": identifier, "error": error, "run_id": f"run-{dt}", "finish_reason": "error"}


def plain(identifier: str, words: str = WORDS, dt: str = DAY, **columns) -> dict:
    """A generated row without token ids: one token a word, and nothing drafted."""
    tokens = len(words.split())
    return {
        "entity_id": identifier, "knowledge": words, "tokens": tokens, "finish_reason": "eos",
        "generated_dt": dt, "source_run_id": f"run-{dt}", "run_id": f"run-{dt}", "target_steps": tokens,
        "pool_kind": "global", "pool": "global", "prompt_sha256": "s", "text_key": "k", "decode_ms": 4.0,
        "scored_tokens": 0, "accepted_tokens": 0, "relaxed_tokens": 0, "slot_steps": 1.0 * tokens} | columns


def plan(out: Path, entity: str, prompts: dict[str, str], dt: str = DAY, stale: bool = True) -> None:
    """The stage plan's table."""
    folder = out / "_work" / f"dt={dt}" / "plan" / f"entity={entity}"
    folder.mkdir(parents=True)
    rows = [{"entity_id": name, "prompt": prompt, "stale": stale, "strict": False, "interactions": 3}
            for name, prompt in prompts.items()]
    for part in range(2):
        pq.write_table(pa.Table.from_pylist(rows[part::2], schema=PLAN), folder / f"part-{part}.parquet")


def times(began: float = 1767312000.0) -> dict:
    """Keys of a manifest about time and money: three stages, and two workers of which one waits."""
    return {
        "seconds": {"plan": 30.0, "generate": 120.0, "publish": 10.0},
        "stages": [{"stage": "plan", "start": began, "end": began + 30},
                   {"stage": "generate", "start": began + 30, "end": began + 150},
                   {"stage": "publish", "start": began + 151, "end": began + 161}],
        "workers": {"workers": 2, "slots": 2, "imbalance": 1.2, "waited_s": 20.0, "batch_size": 4, "spans": {
            "host-a:11": [[began + 40, began + 80, 0, 1], [began + 80, began + 130, 2, 1]],
            "host-b:12": [[began + 40, began + 90, 1, 1]]}},
        "baseline_span": [began + 130, began + 148], "new_tokens": [0, 64],
        "settings": {"cost": {"per_gpu_hour": 3.0}}}


def publish(out: Path, users: list[dict], items: list[dict], dt: str = DAY, **manifest) -> None:
    """Write a date as the stage publish leaves it; ``manifest`` overrides keys of both manifests."""
    for entity, rows in (("user", users), ("item", items)):
        folder = out / "knowledge" / f"entity={entity}" / f"dt={dt}"
        folder.mkdir(parents=True)
        for part in range(2):  # two files, so that a row's place is more than its number
            table = pa.Table.from_pylist(rows[part::2], schema=KNOWLEDGE)
            pq.write_table(table, folder / f"part-{part}.parquet")
        write_json(folder / MANIFEST, {**describe(rows, dt, entity), **manifest})


def describe(rows: list[dict], dt: str, entity: str) -> dict:
    """A manifest with the keys of dare_job/stages/publish.py that a report reads."""
    model = resolve("embedded")
    new = [row for row in rows if row.get("generated_dt") == dt]
    without = sum(row.get("generated_dt") is None for row in rows)
    totals = {name: sum(row[name] for row in new) for name in SUMS}
    return {
        "date": dt, "entity": entity, "run_id": f"run-{dt}", "mode": "dare", "verify": "strict",
        "config": "c" * 64,
        "model": {"name": "embedded", "dtype": "float32", "path": str(model), "hash": "h" * 64},
        "tokenizer": tokenizer_hash(model), "totals": totals,
        "counts": {"rows": len(rows), "written": len(new), "errors": sum("error" in row for row in rows),
                   "without_text": without, "carried": len(rows) - len(new) - without, "guarded": 0,
                   "pending": 0},
        "pool_kinds": dict(Counter(row["pool_kind"] for row in new if row["pool_kind"])),
        "tokens_per_s": 500.0, "waves": [], "rejects": {"broken": 0, "duplicate": 0}, "previous": None,
        "baseline": {"rows": 8, "workers": 1, "batch_size": 4, "tokens_per_s": 200.0, "method": "engine",
                     "rates": {"engine": 200.0, "generate": 150.0}},
        "files": {"part-0.parquet": {"rows": len(rows), "bytes": 2048, "sha256": "0" * 64}},
    }


def rich(out: Path) -> Path:
    """Eight dates; the last has three kinds of pool, reused tokens, errors, waves, gates."""
    for before in range(7, 0, -1):
        rows = [text(f"u{n:03d}", dt=day(before)) for n in range(40 + before)]
        publish(out, rows, [text(f"i{n}", dt=day(before)) for n in range(12)], day(before), **times())
    plan(out, "user", {f"u{n:03d}": f"Titles:\n1. Film {n}\n2. Old film" for n in range(47)}, day(1))
    users = [text(f"u{n:03d}", f"{WORDS} " * (2 + n % 5), kind=KINDS[n % 3], accepted=2 + n % 6 - n % 3,
                  scored=n % 4 * 5, decode_ms=20.0 * 1.1 ** (n % 40)) for n in range(60)]
    users += [text(HOSTILE_ID, f"{HOSTILE} {WORDS}", accepted=0, decode_ms=9000.0)]
    users += [text(f"old{n}", dt=day(1)) for n in range(9)]
    users += [failed(f"f{n}", f"prompt of {2049 + n} tokens, more than the model's 2048") for n in range(7)]
    users += [failed("f-hostile", HOSTILE), failed("f-empty", "empty history")]
    items = [text(f"i{n}", kind=KINDS[n % 2], accepted=4) for n in range(30)]
    waves = [{"rows": 20, "tokens": 900, "accepted_per_step": 0.9, "tokens_per_s": 210.0},
             {"rows": 71, "tokens": 4000, "accepted_per_step": 3.1, "tokens_per_s": 480.0}]
    gate = {"rows": 1, "of": 91, "failed": False, "first": ["u001"], "why": None}
    gates = {"empty": gate | {"rows": 0, "value": 0.0, "limit": 0.01, "first": []},
             "short": gate | {"value": 0.011, "limit": 0.012},
             "length_ratio": gate | {"value": None, "limit": 1.3, "why": "no text"}}
    previous = str(out / "knowledge" / "entity=user" / f"dt={day(1)}")
    publish(out, users, items, waves=waves, gates=gates, previous=previous, **times())
    plan(out, "user", {HOSTILE_ID: HOSTILE, **{f"u{n:03d}": f"Titles:\n1. New film\n2. Film {n}"
                                               for n in range(60)}})
    route(out, "user", [
        {"entity_id": "u000", "pool": "global", "pool_kind": "global", "reason": "few <b>words</b>"}])
    return out


def route(out: Path, entity: str, rows: list[dict], dt: str = DAY) -> None:
    """The stage route's table."""
    folder = out / "_work" / f"dt={dt}" / "route" / f"entity={entity}"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=ROUTES), folder / "part-0.parquet")
