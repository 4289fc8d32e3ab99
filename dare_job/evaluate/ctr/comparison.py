"""``dare-job ctr``: train every CTR model with every set of texts over the same seeds, and compare them."""

import logging
from itertools import product

from dare_job.errors import ConfigError, DataError
from dare_job.evaluate.ctr import examples, leakage, report, sets, source
from dare_job.evaluate.ctr.examples import Examples
from dare_job.evaluate.ctr.inputs import BASE, Inputs, join
from dare_job.evaluate.ctr.knowledge import Knowledge
from dare_job.evaluate.ctr.models import Ctr
from dare_job.evaluate.ctr.options import Options
from dare_job.evaluate.ctr.train import fit
from dare_job.observe import progress

_LOG = logging.getLogger("dare_job")
_MIN_SEEDS = 5  # fewer give a warning


def run(options: Options) -> dict:
    """Train and compare; returns the JSON object that the command prints last.

    Raises
    ------
    ConfigError
        The options are invalid.
    DataError
        The data or the texts are invalid, or a text may leak a label.
    ModelError
        The encoder cannot be loaded.
    """
    _check(options)
    data = source.load(options.data, options.min_rating)
    texts = {name: [leakage.bounded(table, data) for table in tables]
             for name, tables in sets.read(options).items()}
    label_rows = _examples(options, data, texts)
    inputs = [Inputs(BASE), *(_joined(name, tables, label_rows) for name, tables in texts.items())]
    return report.result(options, label_rows, inputs, _train(options, label_rows, inputs))


def _check(options: Options) -> None:
    for a, b in options.equivalent:
        unknown = {a, b} - {BASE, *options.knowledge}
        if unknown:
            raise ConfigError(f"--equivalent {a},{b}: unknown set {', '.join(sorted(unknown))}; choose from "
                              f"{', '.join([BASE, *options.knowledge])}")
    if BASE in options.knowledge:
        raise ConfigError(f"--knowledge {BASE}=...: that is the name of the model without texts; "
                          "choose another")
    if not options.margin > 0:
        raise ConfigError(f"--margin {options.margin:g} must be above 0")
    if options.seeds < _MIN_SEEDS:
        _LOG.warning("--seeds %d: with fewer than %d, intervals are wide and tests have little power",
                     options.seeds, _MIN_SEEDS)


def _examples(options: Options, data: source.Source, texts: dict[str, list[Knowledge]]) -> Examples:
    if options.labels_from:
        since = leakage.first_second(options.labels_from)
    elif "split" in data.interactions:
        since = None
    else:
        since = leakage.first_labels([table for tables in texts.values() for table in tables])
    label_rows = examples.make(data, since, options.history)
    _LOG.info("%d label rows, %.1f %% clicks; train %d, valid %d, test %d", len(label_rows.label),
              100 * label_rows.label.mean(), *map(len, label_rows.rows.values()))
    return label_rows


def _joined(name: str, tables: list[Knowledge], label_rows: Examples) -> Inputs:
    for table in tables:
        leakage.refuse(name, table, label_rows)
    joined = join(name, tables, label_rows)
    for entity, counts in joined.counts.items():
        if counts["unknown_ids"] == counts["texts"]:
            raise DataError(f"--knowledge {name}: none of its {counts['texts']} {entity} ids is in the data "
                            f"(first: {next(t for t in tables if t.entity == entity).ids[:3]}; the data has "
                            f"{list(label_rows.of(entity).ids[:3])})")
        _LOG.info("%s, %s texts: %d, with ids that are not in the data: %d, ids without a text: %d, "
                  "label rows with one: %.1f %%", name, entity, counts["texts"], counts["unknown_ids"],
                  counts["without_text"], 100 * counts["label_rows_with_text"])
    return joined


def _train(options: Options, label_rows: Examples, inputs: list[Inputs]) -> report.Results:
    """One result per seed, seeds from 0, by (model, set of texts)."""
    results: report.Results = {}
    trainings = list(product(range(options.seeds), options.models, inputs))
    with progress.counting("training CTR models", len(trainings), unit="models") as counter:
        for seed, model, texts in trainings:
            fitted = fit(Ctr(model, label_rows, texts, seed), label_rows, texts, seed, options.training,
                         options.device)
            results.setdefault((model, texts.name), []).append(fitted)
            counter.advance()
            _LOG.info("%s %s seed %d: AUC %.4f, log loss %.4f, %d epochs, %.1f s", model, texts.name, seed,
                      fitted.auc, fitted.logloss, fitted.epochs, fitted.seconds)
    return results
