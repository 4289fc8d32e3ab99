"""``dare-job ctr``: train every CTR model with every set of texts over the same seeds, and compare them."""

import logging
import time

from dare_job.errors import ConfigError, DataError
from dare_job.evaluate.ctr import examples, leakage, report, sets, source
from dare_job.evaluate.ctr.examples import Examples
from dare_job.evaluate.ctr.inputs import BASE, Inputs, join, rows_of
from dare_job.evaluate.ctr.knowledge import Knowledge
from dare_job.evaluate.ctr.options import Options
from dare_job.evaluate.ctr.train import Fitted, fit

_LOG = logging.getLogger("dare_job")
_SEEDS = 5  # least number for figures to go by


def run(options: Options) -> dict:
    """Train and compare; returns the JSON object that the command prints last.

    Raises ConfigError if options are invalid; DataError if data or texts are invalid, or a text may leak a
    label.
    """
    _check(options)
    from dare_job.evaluate.ctr import models

    unknown = sorted(set(options.models) - set(models.MODELS))
    if unknown or not options.models:
        raise ConfigError(f"--ctr-model {','.join(unknown)!r}: choose from {', '.join(models.MODELS)}")
    data = source.load(options.data, options.min_rating)
    tables = {name: [leakage.bounded(table, data) for table in found]
              for name, found in sets.read(options).items()}
    made = _examples(options, data, tables)
    inputs = [Inputs(BASE), *(_joined(name, found, made) for name, found in tables.items())]
    results = _train(options, made, inputs)
    return report.result(options, made, inputs, results)


def _check(options: Options) -> None:
    for a, b in options.equivalent:
        strange = next((name for name in (a, b) if name not in {BASE, *options.knowledge}), None)
        if strange:
            raise ConfigError(f"--equivalent {a},{b}: {strange!r} is no set of texts here; there are "
                              f"{', '.join([BASE, *options.knowledge])}")
    if BASE in options.knowledge:
        raise ConfigError(f"--knowledge {BASE}=...: that is the name of the model without texts; "
                          "choose another")
    if not options.margin > 0:
        raise ConfigError(f"--margin {options.margin:g} must be above 0")
    if options.seeds < _SEEDS:
        _LOG.warning("--seeds %d: an interval over fewer than %d is wide, and a test over them finds little",
                     options.seeds, _SEEDS)


def _examples(options: Options, data: source.Source, tables: dict[str, list[Knowledge]]) -> Examples:
    if options.labels_from:
        since = leakage.first_second(options.labels_from)
    elif "split" in data.interactions:
        since = None
    else:
        since = leakage.first_labels([table for found in tables.values() for table in found])
    made = examples.make(data, since, options.history)
    _LOG.info("%d label rows, %.1f %% clicks; train %d, valid %d, test %d", len(made.label),
              100 * made.label.mean(), *map(len, made.rows.values()))
    return made


def _joined(name: str, tables: list[Knowledge], made: Examples) -> Inputs:
    for table in tables:
        leakage.refuse(name, table, made, rows_of(table, made))
    joined = join(name, tables, made)
    for entity, counts in joined.counts.items():
        if counts["unknown_ids"] == counts["texts"]:
            raise DataError(f"--knowledge {name}: none of its {counts['texts']} {entity} ids is in the data "
                            f"(first: {next(t for t in tables if t.entity == entity).ids[:3]}; the data has "
                            f"{list(made.of(entity).ids[:3])})")
        _LOG.info("%s, %s texts: %d, of ids that the data lacks: %d, without a text: %d, label rows "
                  "with one: %.1f %%", name, entity, counts["texts"], counts["unknown_ids"],
                  counts["without_text"], 100 * counts["label_rows_with_text"])
    return joined


def _train(options: Options, made: Examples, given: list[Inputs]) -> dict[tuple[str, str], list[Fitted]]:
    """By (model, set of texts): one result a seed, seeds from 0."""
    from dare_job.evaluate.ctr.models import Ctr

    found: dict[tuple[str, str], list[Fitted]] = {}
    total, began = len(options.models) * len(given) * options.seeds, time.perf_counter()
    for seed in range(options.seeds):
        for model in options.models:
            for inputs in given:
                fitted = fit(Ctr(model, made, inputs, seed), made, inputs, seed, options.training,
                             options.device)
                found.setdefault((model, inputs.name), []).append(fitted)
                done = sum(map(len, found.values()))
                left = (time.perf_counter() - began) / done * (total - done)
                _LOG.info("%s %s seed %d: AUC %.4f, log loss %.4f, %d epochs, %.1f s (%d of %d, %.0f s left)",
                          model, inputs.name, seed, fitted.auc, fitted.logloss, fitted.epochs,
                          fitted.seconds, done, total, left)
    return found
