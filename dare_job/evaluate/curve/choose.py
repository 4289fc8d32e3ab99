"""Which setting of the relaxed rule a night takes: the fastest one that the curve shows to keep a target.

A target is ``auc=0.0005`` (the loss against strict text is at most that), ``cosine=0.98`` or ``rouge_l=0.95``
(the mean over rows is at least that). Shown means that the curve's bound keeps it, not its mean; where no
setting does, or none is faster than strict in every turn, text is strict.
"""

from dataclasses import dataclass, replace
from functools import partialmethod
from typing import Literal

from dare_job.errors import ConfigError
from dare_job.evaluate.curve import table
from dare_job.evaluate.curve.table import Entry, QualityCurve
from dare_job.job import Job
from dare_job.storage import paths

_MOST_CARRIED = 0.1  # of the texts: with more that are alike in all sets, AUC lost is too low


@dataclass(frozen=True)
class Target:
    """``measure`` (auc, cosine, rouge_l) and its limit: for auc the most, else the least."""

    measure: str
    limit: float

    @classmethod
    def of(cls, text: str) -> "Target":
        """From ``MEASURE=LIMIT``, which the settings have checked."""
        measure, _, limit = text.partition("=")
        return cls(measure, float(limit))

    def value(self, entry: Entry, kind: Literal["mean", "bound"]) -> float | None:
        """The entry's mean or bound, of several CTR models the worst one; None: there is none."""
        if self.measure != "auc":
            return getattr(getattr(entry, self.measure), kind)
        values = [getattr(loss, kind) for loss in entry.auc.values()]
        return max(values) if values and None not in values else None

    bound, mean = partialmethod(value, kind="bound"), partialmethod(value, kind="mean")

    def kept(self, value: float | None) -> bool:
        return value is not None and (value <= self.limit if self.measure == "auc" else value >= self.limit)

    def badness(self, value: float) -> float:
        return value if self.measure == "auc" else -value


def chosen(job: Job) -> Job:
    """The job with the setting that ``verify.target`` picks, and with what was picked and why in ``choice``.

    Without a target it is the same job. Raises ConfigError for a curve that is missing, damaged, or of
    another model, prompt or limit than tonight's.
    """
    verify = job.config.verify
    if verify.target is None:
        return job
    curve = table.read(paths.path(verify.curve, "verify.curve"), job)
    target = Target.of(verify.target)
    if target.measure == "auc" and not any(entry.auc for entry in curve.entries):
        raise ConfigError(f"verify.target = {verify.target}: {verify.curve} has no AUC; measure it with "
                          "`dare-job curve --data DATA`, or take cosine=... as the target")
    if job.config.decode.mode == "dare":
        entry, why = pick(curve, target)
    else:
        entry, why = None, f"text stays strict: decode.mode = {job.config.decode.mode} always is"
    why += _otherwise(job, curve)
    rule = {"rule": "strict"} if entry is None else {"rule": "relaxed", "k": entry.k, "p": entry.p}
    config = job.config.model_copy(update={"verify": verify.model_copy(update=rule)})
    choice = {"target": verify.target, "curve": verify.curve, "curve_date": curve.date,
              "rows": curve.rows, "seeds": curve.seeds, "level": curve.level, **rule,
              "bound": None if entry is None else target.bound(entry), "why": why}
    made = replace(job, config=config, choice=choice)
    known = {name: value for name, value in vars(job).items() if name not in vars(made)}
    made.__dict__.update(known)  # what was found out, as the model's hash
    return made


def _otherwise(job: Job, curve: QualityCurve) -> str:
    """In words, settings of drafts that are others than the curve's: speed and text depend on them."""
    found = []
    for section in ("decode", "drafter", "pools"):
        tonight = getattr(job.config, section).model_dump(mode="json")
        found += [f"{section}.{name} = {before[name]} (tonight {value})" for name, value in tonight.items()
                  if (before := curve.settings.get(section, {})).get(name, value) != value]
    return f"; the curve was measured with {', '.join(found)}" if found else ""


def pick(curve: QualityCurve, target: Target) -> tuple[Entry | None, str]:
    """The fastest entry whose bound keeps the target, or None for strict; and why, in words."""
    relaxed = [entry for entry in curve.entries if entry.k is not None]
    if target.measure == "auc" and curve.carried > _MOST_CARRIED * (curve.rows + curve.carried):
        return None, (f"text stays strict: the data cannot tell, since {curve.carried} of "
                      f"{curve.rows + curve.carried} texts were not written by the settings; measure on a "
                      "date on which all are")
    kept = [entry for entry in relaxed if target.kept(target.bound(entry))]
    faster = [entry for entry in kept if entry.speed[1] > 1]
    if faster:
        best = max(faster, key=lambda entry: entry.speed[0])
        return best, (f"{best.name} keeps it ({_said(curve, target, best)}) at {best.speed[0]:.2f} times the "
                      "rows a second of strict")
    if kept:
        return None, (f"text stays strict: of the settings that keep it ({', '.join(e.name for e in kept)}) "
                      f"none was faster than strict in each of {curve.turns} turns")
    bounded = [entry for entry in relaxed if target.bound(entry) is not None]
    if not bounded:
        return None, (f"text stays strict: the data cannot tell, no setting has a bound "
                      f"({_data(curve, target)})")
    nearest = min(bounded, key=lambda entry: target.badness(target.bound(entry)))
    if not any(target.kept(target.mean(entry)) for entry in bounded):
        return None, (f"text stays strict: no setting keeps it, nearest is {nearest.name} "
                      f"({_said(curve, target, nearest)})")
    return None, (f"text stays strict: the data cannot tell that a setting keeps it, nearest is "
                  f"{nearest.name} ({_said(curve, target, nearest)}); more "
                  f"{'seeds' if target.measure == 'auc' else 'rows'} bring the bound nearer")


def _said(curve: QualityCurve, target: Target, entry: Entry) -> str:
    way = "at most" if target.measure == "auc" else "at least"
    name = "AUC lost" if target.measure == "auc" else target.measure
    return (f"{name} {target.mean(entry):.4g}, {way} {target.bound(entry):.4g} at {curve.level:.0%}, "
            f"{_data(curve, target)}")


def _data(curve: QualityCurve, target: Target) -> str:
    return f"{curve.rows} rows, {curve.seeds} seeds" if target.measure == "auc" else f"{curve.rows} rows"
