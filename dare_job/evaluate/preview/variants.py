"""Runs a preview: the same rows with each variant, one model in memory at a time. Writes nothing to OUT."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from dare_job.config.settings import JobConfig
from dare_job.data.input import preview_rows as input_rows
from dare_job.data.input.preview_rows import Row
from dare_job.decode.request import Result
from dare_job.errors import ConfigError, DataError
from dare_job.evaluate.preview import PreviewOptions, decode, results, screen
from dare_job.generate import loading, preflight
from dare_job.job import Job
from dare_job.observe import progress
from dare_job.schemas import ENTITIES


@dataclass(frozen=True)
class Variant:
    """A model or prompt set to preview; ``name`` is None if there is nothing to compare with."""

    name: str | None
    job: Job


def variants(options: PreviewOptions, make_job: Callable[[dict], Job]) -> list[Variant]:
    """The variants of the options.

    Parameters
    ----------
    make_job
        Makes the job with additional settings: (name of the option, value) by key.

    Raises
    ------
    ConfigError
        Models and prompts vary at once.
    """
    if options.models and options.prompts:
        raise ConfigError("--models and --prompts cannot be combined: compare one of them at a time")
    if options.models:
        return [Variant(name, make_job({"model.name": ("--models", name)})) for name in options.models]
    if options.prompts:
        written = _entities(make_job({}).config)
        return [Variant(name, make_job({f"prompts.{entity}": ("--prompts", name) for entity in written}))
                for name in options.prompts]
    return [Variant(None, make_job({}))]


def run(chosen: Sequence[Variant], options: PreviewOptions) -> dict:
    """Preview the variants; returns ``date``, ``variants`` with a summary and rows each.

    Raises
    ------
    ConfigError
        As ``preflight.check_drafting``, or ``--ids`` is malformed or names an entity type without prompts.
    ModelError, InfrastructureError
        As ``preflight.check_drafting``.
    DataError
        The input has no such rows, or no prompt can be rendered or tokenized.
    """
    first = chosen[0].job
    named = [_named(name) for name in options.ids]
    for entity, identifier in named:
        if entity not in _entities(first.config):
            raise ConfigError(f"--ids {entity}:{identifier}: prompts.{entity} is null, so {entity}s get no "
                              "texts")
    for variant in chosen:
        preflight.check_drafting(variant.job)
    with progress.doing("reading the input"):
        entities = input_rows.choose(first.config, first.space.day, options.limit, named)
    previews, shown = [], defaultdict(list)
    for variant in chosen:
        if previews:
            loading.unload_models()
        rows = input_rows.prompts(entities, variant.job.config)
        previews.append(_preview(variant, rows, shown if len(chosen) > 1 else None))
    for row in rows if len(chosen) > 1 else ():
        for show in shown[row.entity, row.entity_id]:
            show()
    if len(chosen) > 1:
        for variant, preview in zip(chosen, previews, strict=True):
            screen.show_heading(variant)
            screen.show_summary(preview["summary"])
        screen.show_comparison([preview["summary"] for preview in previews])
    return {"date": first.space.dt, "input": first.config.input.path, "variants": previews}


def _entities(config: JobConfig) -> list[str]:
    """The entity types that get texts."""
    return [entity for entity in ENTITIES if getattr(config.prompts, entity) is not None]


def _named(name: str) -> tuple[str, str]:
    entity, colon, identifier = name.partition(":")
    if entity not in ENTITIES or not colon or not identifier:
        raise ConfigError(f"--ids {name!r} is not the name of a row; write user:ID or item:ID")
    return entity, identifier


def _preview(variant: Variant, rows: Sequence[Row], later: dict[decode.Name, list] | None) -> dict:
    """Preview one variant, and show it. With ``later``, add what shows each row there, and show nothing."""
    name, config = variant.name or variant.job.config.model.name, variant.job.config

    def show(function: Callable, row: Row, *values) -> None:
        if later is None:
            function(row, *values, variant.name)
        else:
            later[row.entity, row.entity_id].append(partial(function, row, *values, variant.name))

    if later is None:
        screen.show_heading(variant)
    for row in rows:
        if row.error:
            show(screen.show_error, row, row.error)
    able, texts = [row for row in rows if row.prompt], {}
    if not able:
        raise DataError(f"no prompt can be rendered: {rows[0].error}")

    def take(row: Row, prompt: str, result: Result, text: str) -> None:
        texts[row.entity, row.entity_id] = text
        show(screen.show_text, row, prompt, result, text, config.decode.max_new_tokens)

    written = decode.write(variant.job, able, take)
    for row in able:
        if error := written.failed.get((row.entity, row.entity_id)):
            show(screen.show_error, row, error)
    row_results = results.row_results(rows, written, texts, config)
    summary = results.summary(name, row_results, written, config)
    if later is None:
        screen.show_summary(summary)
    return {"summary": summary, "advice": results.advice(summary), "rows": row_results}
