"""Evaluates the texts of a preview: finish reasons, failed checks, titles named, proposed token limit."""

import hashlib
import math
import statistics
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dare_job.config.gates import MAX_SHARE
from dare_job.config.settings import JobConfig
from dare_job.data import titles
from dare_job.data.input.preview_rows import Row
from dare_job.decode.request import Result
from dare_job.evaluate.preview.decode import GENEROUS, Rate, Written
from dare_job.generate.copied_words import copied_words
from dare_job.generate.task import prompt_format
from dare_job.publish.gate import checks, content
from dare_job.publish.gate.findings import CHECKS
from dare_job.publish.gate.scan import MIN_FAILING_ROWS
from dare_job.schemas import ENTITIES, KNOWLEDGE

_ENDED = ("eos", "stop")  # finish reasons of texts that ended by themselves
_ENDED_SHARE = 0.95  # a limit is proposed only if at least this share of the texts ended by themselves
_STEP = 16  # a proposed limit is a multiple of this
FACTS = 3  # a text should name at least this many titles and attributes of its row
_OTHERS = 50  # rows that a text is compared with
_SPARE = 1.1  # ratio of a proposed limit to the longest text


def row_results(rows: Sequence[Row], written: Written, texts: dict, config: JobConfig) -> list[dict]:
    """One dictionary per row: prompt, text, tokens, finish reason, failed gates, titles named.

    ``own``: whether the text names more of its own row than of the others.

    Parameters
    ----------
    texts
        Text by (entity type, id), decoded up to the generous limit.
    """
    failing = _failing_gates(rows, written, config)
    return [_row_result(row, rows, written, texts, config, failing) for row in rows]


def _row_result(row: Row, rows: Sequence[Row], written: Written, texts: dict, config: JobConfig,
                failing: dict) -> dict:
    name = (row.entity, row.entity_id)
    shown = {"entity": row.entity, "entity_id": row.entity_id, "prompt": written.prompts.get(name),
             "error": row.error or written.failed.get(name)}
    result = written.results.get(name)
    if result is None:
        return shown
    named = titles.named(texts[name], row.titles, row.values)
    return shown | {
        "error": result.error, "text": texts[name], "tokens": len(result.token_ids),
        "prompt_tokens": result.prompt_tokens, "finish_reason": result.finish_reason,
        "cut_off": is_cut_off(result, config.decode.max_new_tokens), "gates": failing[name], "named": named,
        "own": _is_own(row, rows, texts[name], len(named))}


def _is_own(row: Row, rows: Sequence[Row], text: str, named: int) -> bool:
    """Whether the text names more of its row's titles and attributes than of any other row's."""
    others = [other for other in rows if other.entity == row.entity and other is not row][:_OTHERS]
    return all(len(titles.named(text, other.titles, other.values)) < named for other in others)


def is_cut_off(result: Result, limit: int) -> bool:
    """Whether ``decode.max_new_tokens`` = ``limit`` would cut the text off."""
    return result.error is None and (len(result.token_ids) > limit or result.finish_reason == "length")


def _failing_gates(rows: Sequence[Row], written: Written, config: JobConfig) -> dict:
    """Names of the checks that each text fails as ``decode.max_new_tokens`` would leave it.

    ``errors``: only the text up to that limit has an error, such as an open thinking block.
    """
    failing = {name: [] if name in written.limited or result.error else ["errors"]
               for name, result in written.results.items()}
    prompt_of = {(row.entity, row.entity_id): row.prompt for row in rows}
    for entity in {entity for entity, _ in written.limited}:
        chosen = [name for name in prompt_of if name[0] == entity and name in written.limited]
        prompts = [prompt_of[name] for name in chosen]
        checked = checks.Texts(_knowledge(chosen, prompts, written, config), written.numbers)
        script = content.main_script(pa.array(prompts, pa.string()))
        by_check = checks.failing_texts(checked, config.gates, script, config.decode.form_of(entity).kind)
        by_check["same_text"] = content.SameTexts().add(checked.text, checked.prompts), checked.tokens
        for check, (failed, _) in by_check.items():
            for place in np.flatnonzero(failed):
                failing[chosen[place]].append(check)
    return failing


def _knowledge(names: Sequence[tuple[str, str]], prompts: Sequence[str], written: Written,
               config: JobConfig) -> pa.RecordBatch:
    """The columns of KNOWLEDGE that checks read, with texts cut to ``decode.max_new_tokens``."""
    schema = pa.schema([KNOWLEDGE.field(column) for column in checks.COLUMNS])
    formats = {entity: prompt_format(config, entity) for entity in {entity for entity, _ in names}}
    sources = [formats[entity].with_examples(prompt)
               for (entity, _), prompt in zip(names, prompts, strict=True)]
    rows, copied = [], copied_words(sources, [written.limited[name] for name in names])
    limit = config.decode.max_new_tokens
    for name, prompt, words in zip(names, prompts, copied.tolist(), strict=True):
        result = written.results[name]
        cut = is_cut_off(result, limit)
        rows.append({
            "entity_id": name[1], "knowledge": written.limited[name], "error": None,
            "token_ids": result.token_ids[:limit].tolist(), "tokens": min(limit, len(result.token_ids)),
            "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(),
            "finish_reason": "length" if cut else result.finish_reason,
            "relaxed_tokens": result.relaxed_tokens, "copied_words": words})
    return pa.RecordBatch.from_pylist(rows, schema)


def summary(name: str, rows: list[dict], written: Written, config: JobConfig) -> dict:
    """The result of one variant."""
    texts = [row for row in rows if "text" in row and not row["error"]]
    checked = [row for row in texts if "errors" not in row["gates"]]
    gates = [*_error_findings(rows, written, config),
             *(finding for entity in ENTITIES for finding in _findings(entity, checked, config))]
    return {
        "name": name, "rows": len(rows), "texts": len(texts),
        "errors": sum(row["error"] is not None for row in rows),
        "finish_reasons": dict(Counter(row["finish_reason"] for row in texts)),
        "median_tokens": statistics.median(row["tokens"] for row in texts) if texts else None,
        "cut_off": sum(row["cut_off"] for row in texts), "max_new_tokens": config.decode.max_new_tokens,
        "decoded_up_to": GENEROUS * config.decode.max_new_tokens,
        "proposed_max_new_tokens": proposed_limit(texts),
        "gates": gates, "would_publish": would_publish(gates, checked),
        "distinct": len({row["text"] for row in texts}),
        "naming_share": sum(len(row["named"]) >= FACTS for row in texts) / len(texts) if texts else None,
        "own_share": sum(row["own"] for row in texts) / len(texts) if texts else None,
        "named_median": statistics.median(len(row["named"]) for row in texts) if texts else None,
        "speed": {"without_drafts": _speed(written.plain), "with_drafts": _speed(written.drafted),
                  "equal_texts": written.equal, "drafts": written.drafts_from},
        "loading_s": round(written.loading_s, 2), "first_text_s": round(written.first_text_s, 2)}


def would_publish(gates: list[dict], texts: list[dict]) -> bool | None:
    """Whether a run with these texts would publish them; None if too few texts or failing rows can tell."""
    if not texts or any(finding["over"] for finding in gates):
        return False
    rows = Counter(row["entity"] for row in texts)
    few = min(rows.values()) < MIN_FAILING_ROWS or any(finding["few"] for finding in gates)
    return None if few else True


def _error_findings(rows: list[dict], written: Written, config: JobConfig) -> list[dict]:
    """Rows with a prompt that failed. As in a run, the limit applies to both entity types together."""
    names = written.results.keys() | written.failed.keys()
    attempted = [row for row in rows if (row["entity"], row["entity_id"]) in names]
    failed = [row for row in attempted if row["error"] or "errors" in row["gates"]]
    limit, of = config.limits.max_error_share, Counter(row["entity"] for row in attempted)
    over = limit is not None and len(failed) > limit * len(attempted)
    return [{"entity": entity, "check": "errors", "rows": count, "of": of[entity],
             "share": count / of[entity], "setting": CHECKS["errors"][1], "limit": limit, "over": over,
             "few": False} for entity, count in Counter(row["entity"] for row in failed).items()]


def _findings(entity: str, texts: list[dict], config: JobConfig) -> list[dict]:
    """Checks that texts of an entity type failed: rows, share, limit, and whether it is above the limit.

    ``few``: the share is above the limit, but of so few rows that the check of a run would pass.
    """
    of = [row for row in texts if row["entity"] == entity]
    counts = Counter(check for row in of for check in row["gates"])
    findings = []
    for check, rows in counts.items():
        setting = CHECKS[check][1]
        limit = checks.limit(config.gates, check, config.decode.form_of(entity).kind)
        above, few = limit is not None and rows > limit * len(of), rows < MIN_FAILING_ROWS
        findings.append({"entity": entity, "check": check, "rows": rows, "of": len(of),
                         "share": rows / len(of), "setting": setting, "limit": limit,
                         "over": above and not few, "few": above and few})
    return findings


def _speed(rate: Rate | None) -> dict | None:
    if rate is None or rate.tokens_per_s is None:
        return None
    return {"rows": rate.rows, "tokens": rate.tokens, "tokens_per_s": round(rate.tokens_per_s, 1),
            "accepted_per_step": round(rate.accepted / rate.steps, 2) if rate.steps else None}


def proposed_limit(texts: list[dict]) -> int | None:
    """A value of ``decode.max_new_tokens`` that cuts off no text that ended by itself.

    None if too few texts ended by themselves; the prompt then has to ask for shorter texts.
    """
    ended = [row["tokens"] for row in texts if row["finish_reason"] in _ENDED]
    if not ended or len(ended) < _ENDED_SHARE * len(texts):
        return None
    return math.ceil(_SPARE * max(ended) / _STEP) * _STEP


def advice(result: dict) -> list[str]:
    """What to change, in words, for a ``summary``."""
    words, limit, texts = [], result["max_new_tokens"], result["texts"]
    if texts and result["cut_off"] > MAX_SHARE["cut_off"] * texts:
        words.append(f"{result['cut_off']} of {texts} texts reach decode.max_new_tokens = {limit} and would "
                     "be cut off: raise it, or ask for shorter texts in the prompt")
    if result["proposed_max_new_tokens"] is not None:
        words.append(f"decode.max_new_tokens = {result['proposed_max_new_tokens']} would cut off none of "
                     f"the texts that ended by themselves (now {limit})")
    elif texts:
        ended = sum(result["finish_reasons"].get(reason, 0) for reason in _ENDED)
        words.append(f"no value of decode.max_new_tokens is proposed: only {ended} of {texts} texts ended by "
                     f"themselves within {result['decoded_up_to']} tokens")
    return words
