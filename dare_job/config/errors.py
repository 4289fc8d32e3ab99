"""Explains validation failures of the settings: the key, its value, its origin, and the valid choices."""

import difflib
import typing
from collections.abc import Sequence

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from dare_job.config.source import Override

_QUOTE = "; write it in quotes (in a shell: --set 'KEY=\"VALUE\"')"
_SEED = "use seed, the one seed of all stages"
_GATE = "it is a constant now"
_REVISION = "write the revision after the name: "

# Key of an earlier version -> what to write instead.
REPLACED = {
    "model.revision": f"{_REVISION}model.name: NAME@REVISION",
    "encode.revision": f"{_REVISION}encode.model: NAME@REVISION",
    "recommend.revision": f"{_REVISION}recommend.model: NAME@REVISION",
    "drafter.revision": f"{_REVISION}drafter.model: NAME@REVISION",
    "drafter.source": "set drafter.model for a draft model and leave it out for retrieval; the hybrid of "
                      "both was removed",
    "drafter.confidence": "it belonged to the hybrid drafter, which was removed",
    "sample.seed": _SEED, "beam.seed": _SEED, "embed.seed": _SEED, "group.seed": _SEED, "pools.seed": _SEED,
    "baseline.seed": _SEED, "encode.seed": _SEED, "recommend.seed": _SEED,
    "sample.repetition_penalty": "use decode.repetition_penalty, which mode sample reads too",
    "sample.law": "use sample.method: RULE or RULE/DISTRIBUTION, such as rrs, rrs/iid or k_seq",
    "sample.rule": "use sample.method: RULE or RULE/DISTRIBUTION, such as rrs, rrs/iid or k_seq",
    "beam.law": "use beam.method: iid, without_replacement, or BEAMS/DRAFTS",
    "beam.draft_law": "use beam.method: iid, without_replacement, or BEAMS/DRAFTS",
    "beam.temperature": "use sample.temperature, which mode beam reads too",
    "beam.top_k": "use sample.top_k, which mode beam reads too",
    "beam.top_p": "use sample.top_p, which mode beam reads too",
    "embed.source": "set embed.vectors for ready-made vectors; without it LightGCN runs",
    "embed.users": "use embed.vectors: {user: FILE}",
    "embed.items": "use embed.vectors: {item: FILE}",
    "embed.layers": "LightGCN has 2 layers now",
    "embed.learning_rate": "LightGCN trains with a learning rate of 0.01 now; use embed.epochs",
    "embed.batch_size": "LightGCN fits its batch size (2048) to the number of interactions",
    "gates.min_failing_rows": f"{_GATE}: 3 rows",
    "gates.short_tokens": f"{_GATE}: 8 tokens; use gates.max_share: {{short: SHARE}}",
    "gates.loop_ngram": f"{_GATE}: 32 tokens; use gates.max_share: {{loop: SHARE}}",
    "gates.loop_repeats": f"{_GATE}: 4 repeats; use gates.max_share: {{loop: SHARE}}",
    "gates.loop_tokens": f"{_GATE}: 24 tokens; use gates.max_share: {{loop: SHARE}}",
    **{f"gates.max_{check}_share": f"use gates.max_share: {{{check}: SHARE}}"
       for check in ("empty", "short", "cut_off", "loop", "unprintable", "relaxed")},
    "gates.min_length_pairs": f"{_GATE}: 50 texts",
    "gates.max_length_distance": "use gates.max_share: {length_distance: SHARE}",
    "group.max_group_size": "it is four times group.target_size now",
    "spark.driver_memory": "use spark.conf: {spark.driver.memory: 8g}",
    "encode.window": "the encoder reads as many tokens at once as it can",
    "encode.row_group_rows": f"{_GATE}: 8192 rows",
    "encode.max_drift": f"{_GATE}: a warning above 1.25",
    "recommend.draft": "use recommend.draft_depth: auto, all, or a number of levels",
    "log.every_s": f"{_GATE}: 15 seconds",
    "log.file": "the log file OUT/_work/dt=D/logs/RUN_ID.jsonl is always written",
    "metrics.job": "use metrics.labels: {job: NAME}",
}


def explain(error: ValidationError, root: type[BaseModel], file: str,
            overrides: Sequence[Override] = ()) -> str:
    """Return one line per failure: its file or flag, the key, its value, and the valid choices or keys."""
    places, by_key = {}, {}  # a key of several types has a failure for each type
    for failure in error.errors():
        key, *place = _locate(root, failure)
        places[key] = place
        by_key.setdefault(key, []).append(failure)
    lines: dict[str, list[str]] = {}
    for key, failures in by_key.items():
        origin = _origin(key, failures[0], overrides) or file
        lines.setdefault(origin, []).append(_line(key, failures, *places[key]))
    return "; ".join(f"{origin}: " + "; ".join(dict.fromkeys(problems)) for origin, problems in lines.items())


def _locate(root: type[BaseModel], failure) -> tuple[str, type[BaseModel], FieldInfo | None]:
    """Return the key, without branches of unions and list positions after it, its section and its field."""
    section, field, names = root, None, []
    for part in failure["loc"]:
        names.append(str(part))
        field = section.model_fields.get(part)
        kind = field.annotation if field else None
        if typing.get_origin(kind) is dict:
            names += map(str, failure["loc"][len(names):][:1])
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            break
        section = kind
    return ".".join(names), section, field


def _origin(key: str, failure, overrides: Sequence[Override]) -> str | None:
    """Return the origin of the value, if it is an override. A section's own check names the keys it means."""
    for override in reversed(overrides):
        below = f"{override.key}.".startswith(f"{key}.")
        blamed = override.key in failure["msg"] if failure["type"] == "value_error" else below
        if blamed or f"{key}.".startswith(f"{override.key}."):
            return override.origin
    return None


def _line(key: str, failures: list, section: type[BaseModel], field: FieldInfo | None) -> str:
    failure = failures[0]
    if failure["type"] in ("extra_forbidden", "invalid_key"):
        return _unknown(key, failure, sorted(section.model_fields))
    if failure["type"] == "value_error":
        return str(failure["ctx"]["error"])
    if failure["type"] == "missing":
        return f"key {key} is missing: add it"
    messages = list(dict.fromkeys(error["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
                                  for error in failures))
    reason = " or ".join(messages)
    reason = f"should be {reason}" if any("Input should be" in error["msg"] for error in failures) else reason
    if failure["type"] == "string_pattern_mismatch" and field and field.description:
        reason = f"is not of this form: {field.description}"
    choices = _choices(field.annotation) if field else []
    choices = [choice for choice in choices if f"'{choice}'" not in reason]
    hint = f"; valid choices: {', '.join(choices)}" if choices else ""
    number = failure["type"] == "string_type" and isinstance(failure["input"], int | float)
    return f"{key} = {failure['input']!r}: {reason}{hint}{_QUOTE if number else ''}"


def _unknown(key: str, failure, known: list[str]) -> str:
    if failure["type"] == "invalid_key":
        return f"key {failure['input']!r} is not text; valid keys: {', '.join(known)}"
    if key in REPLACED:
        return f"unknown key {key}: {REPLACED[key]}"
    close = difflib.get_close_matches(key.rsplit(".", 1)[-1], known, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"unknown key {key}{hint}; valid keys: {', '.join(known)}"


def _choices(annotation) -> list[str]:
    if typing.get_origin(annotation) is typing.Literal:
        return [str(value) for value in typing.get_args(annotation)]
    return [choice for part in typing.get_args(annotation) for choice in _choices(part)]
