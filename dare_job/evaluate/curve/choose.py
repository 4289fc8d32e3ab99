"""Chooses the relaxed setting of a run: the fastest one whose confidence bound meets a target.

A target is ``auc=0.0005`` (maximum loss against strict text), ``cosine=0.98`` or ``rouge_l=0.95`` (minimum
mean over rows). If no setting meets it, or none is faster than strict in every round, verification is strict.
"""

import copy
from dataclasses import dataclass
from typing import Literal

from dare_job.config.plugins import PlugIn
from dare_job.errors import ConfigError
from dare_job.evaluate.curve import table
from dare_job.evaluate.curve.table import Entry, QualityCurve
from dare_job.job import Job
from dare_job.storage import paths

_MAX_CARRIED_SHARE = 0.1  # of the texts: texts that are the same in all sets make the AUC loss too low


@dataclass(frozen=True)
class Target:
    """``measure`` (auc, cosine, rouge_l) and its limit: for auc the maximum, else the minimum."""

    measure: str
    limit: float

    @classmethod
    def of(cls, text: str) -> "Target":
        """Parse ``MEASURE=LIMIT``, which the settings have checked."""
        measure, _, limit = text.partition("=")
        return cls(measure, float(limit))

    def value(self, entry: Entry, kind: Literal["mean", "bound"]) -> float | None:
        """The entry's mean or bound, for AUC that of the worst CTR model; None if it was not measured."""
        if self.measure != "auc":
            return getattr(getattr(entry, self.measure), kind)
        values = [getattr(loss, kind) for loss in entry.auc.values()]
        return max(values) if values and None not in values else None

    def distance(self, value: float) -> float:
        """By how much a value misses the limit; at most 0 if it meets the target."""
        return value - self.limit if self.measure == "auc" else self.limit - value


def chosen(job: Job) -> Job:
    """The job with the setting that meets ``verify.target``; ``choice`` says which and why.

    Without a target it is the same job.

    Raises
    ------
    ConfigError
        The curve is missing or damaged, was measured with another model, prompt or limit, or has no AUC
        although ``verify.target`` is one.
    """
    verify = job.config.verify
    if verify.target is None:
        return job
    curve = table.read(paths.path(verify.curve, "verify.curve"), job)
    target = Target.of(verify.target)
    if target.measure == "auc" and not any(entry.auc for entry in curve.entries):
        raise ConfigError(f"verify.target = {verify.target}: {verify.curve} has no AUC; measure it with "
                          "`dare-job curve --data DATA`, or set a target such as cosine=0.98")
    if job.config.decode.mode == "dare":
        entry, why = pick(curve, target)
    else:
        entry, why = None, f"text stays strict: decode.mode = {job.config.decode.mode} always is"
    why += _other_settings(job, curve)
    rule = _rule(entry, verify.curve)
    choice = {"target": verify.target, "curve": verify.curve, "curve_date": curve.date,
              "rows": curve.rows, "seeds": curve.seeds, "level": curve.level, **rule,
              "bound": None if entry is None else target.value(entry, "bound"), "why": why,
              "auc": {} if entry is None else {
                  model: {"mean": loss.mean, "bound": loss.bound} for model, loss in entry.auc.items()}}
    made = copy.copy(job)  # with its cached properties
    vars(made).update(config=job.config.model_copy(update={"verify": verify.model_copy(update=rule)}),
                      choice=choice)
    return made


def _rule(entry: Entry | None, curve: str) -> dict:
    """The settings of the section ``verify`` that an entry stands for; None: strict.

    Raises
    ------
    ConfigError
        The entry's verifier cannot be loaded, or has another version or file now.
    """
    if entry is None:
        return {"rule": "strict"}
    if entry.plugin is None:
        return {"rule": "relaxed", "k": entry.k, "p": entry.p}
    text = entry.plugin["text"]
    if entry.plugin != {"text": text, **PlugIn.parse("verifier", "verify.curve", text).record()}:
        raise ConfigError(f"verify.curve = {curve}: the verifier {text} has another version or file than "
                          "when it was measured; measure again with `dare-job curve`")
    return {"rule": text}


def _other_settings(job: Job, curve: QualityCurve) -> str:
    """Describe the draft settings that differ from the curve's. Speed and relaxed texts depend on them."""
    changes = []
    for section in ("decode", "drafter", "pools"):
        measured = curve.settings.get(section, {})
        changes += [f"{section}.{name} = {measured[name]} (this run: {value})"
                    for name, value in getattr(job.config, section).model_dump(mode="json").items()
                    if measured.get(name, value) != value]
    return f"; the curve was measured with {', '.join(changes)}" if changes else ""


def pick(curve: QualityCurve, target: Target) -> tuple[Entry | None, str]:
    """The fastest entry whose bound meets the target, or None for strict; and why, in words."""
    texts = curve.rows + curve.carried
    if target.measure == "auc" and curve.carried > _MAX_CARRIED_SHARE * texts:
        return None, (f"text stays strict: the data do not suffice, since {curve.carried} of {texts} texts "
                      "were not generated with the settings; measure on a date on which all texts are stale")
    bounds = [(target.distance(bound), entry) for entry in curve.entries
              if not entry.is_strict and (bound := target.value(entry, "bound")) is not None]
    meeting = [entry for distance, entry in bounds if distance <= 0]
    faster = [entry for entry in meeting if entry.speed[1] > 1]
    if faster:
        best = max(faster, key=lambda entry: entry.speed[0])
        return best, (f"{best.name} keeps it ({_figures(curve, target, best)}) at {best.speed[0]:.2f} times "
                      "the rows per second of strict")
    if meeting:
        reason = (f"of the settings that keep it ({', '.join(entry.name for entry in meeting)}) none was "
                  f"faster than strict in each of {curve.turns} rounds")
    elif not bounds:
        reason = "the data do not suffice, no setting has a bound"
    else:
        _, nearest = min(bounds, key=lambda pair: pair[0])
        if any(target.distance(target.value(entry, "mean")) <= 0 for _, entry in bounds):
            samples = "seeds" if target.measure == "auc" else "rows"
            reason = f"the data do not suffice, more {samples} are needed to show that a setting keeps it"
        else:
            reason = "no setting keeps it"
        reason += f", nearest is {nearest.name} ({_figures(curve, target, nearest)})"
    return None, f"text stays strict: {reason}"


def _figures(curve: QualityCurve, target: Target, entry: Entry) -> str:
    mean, bound = target.value(entry, "mean"), target.value(entry, "bound")
    if target.measure == "auc":
        return (f"AUC loss {mean:.4g}, at most {bound:.4g} at {curve.level:.0%}, {curve.rows} rows, "
                f"{curve.seeds} seeds")
    return f"{target.measure} {mean:.4g}, at least {bound:.4g} at {curve.level:.0%}, {curve.rows} rows"
